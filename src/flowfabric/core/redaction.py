"""Structs that show nobody by accident what they hold."""

from typing import ClassVar, Final

import msgspec

_HIDDEN: Final = "<REDACTED>"


class Redacted(msgspec.Struct, frozen=True):
    """Renders as other structs do, without the values of the fields that `hidden` names."""

    hidden: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, object]]:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, _HIDDEN if name in self.hidden else value) for name, value in fields]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"
