"""Which tenant's work a process does duties for."""

from collections.abc import Mapping

import msgspec


class DutyFilter(msgspec.Struct, frozen=True):
    """Both, where given, must match to the byte; what lacks a value never matches."""

    namespace: str = ""
    instance_tag: tuple[str, str] | None = None

    def matches(self, namespace: str, tags: Mapping[str, str]) -> bool:
        if self.namespace and namespace != self.namespace:
            return False
        if self.instance_tag is None:
            return True
        key, value = self.instance_tag
        return tags.get(key) == value
