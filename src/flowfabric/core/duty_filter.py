"""Whose work the duties of a process do, when several deployments share a store."""

from collections.abc import Mapping
from typing import Final

import msgspec


class DutyFilter(msgspec.Struct, frozen=True):
    """Whose work a process does duties for. Both, where given, must match to the byte; what lacks
    a value never matches."""

    namespace: str = ""
    instance_tag: tuple[str, str] | None = None

    def matches(self, namespace: str, tags: Mapping[str, str]) -> bool:
        if self.namespace and namespace != self.namespace:
            return False
        if self.instance_tag is None:
            return True
        key, value = self.instance_tag
        return tags.get(key) == value

    @property
    def is_set(self) -> bool:
        return bool(self.namespace) or self.instance_tag is not None


EVERYBODY: Final = DutyFilter()
