"""The root of the exception tree and its families."""

import inspect
from collections.abc import Mapping
from typing import ClassVar, Literal, TypedDict, Unpack

from flowfabric.errors.plain import plain

Category = Literal["terminal", "retryable", "cooperative", "informational", "bug"]


class _Attributes(TypedDict, total=False):
    code: str
    category: Category
    status: int | None


class FlowFabricError(Exception):
    """Everything FlowFabric raises on purpose.

    What never varies for a code (its category, HTTP status, whether a retry can help) sits on the
    class and is given in its head; `detail` and `details` say what happened this time. Only leaves,
    which have a code, are raised.
    """

    code: ClassVar[str] = ""
    category: ClassVar[Category] = "terminal"
    status: ClassVar[int | None] = None
    retryable: ClassVar[bool] = False

    detail: str
    details: Mapping[str, object]

    def __init_subclass__(cls, **attributes: Unpack[_Attributes]) -> None:
        super().__init_subclass__()
        for name, value in attributes.items():
            setattr(cls, name, value)
        cls.retryable = cls.category == "retryable"

    def __init__(self, detail: str = "", /, **details: object) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a family: raise one of its leaves")
        # Unpickling calls the class with `args` and then restores __dict__, details included.
        super().__init__(detail)
        self.detail = detail
        self.details = details

    def __str__(self) -> str:
        """One line of plain text: a detail may hold a text of somebody else."""
        return plain(FlowFabricError.text(self))

    def __repr__(self) -> str:
        given = [repr(self.detail)] if self.detail else []
        given += [f"{name}={value!r}" for name, value in self.details.items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def backend_kind(self) -> str | None:
        """What failed on the way to the store: the code of the fault at the root of this error,
        however it was wrapped; None when the store was not to blame."""
        seen: list[BaseException] = []
        link: BaseException | None = self
        while link is not None and link not in seen:
            if isinstance(link, TransportError):
                return link.code
            seen.append(link)
            link = link.__cause__
        return None

    def text(self) -> str:
        """What an answer says happened; some families say it without the code in front."""
        return f"{self.code}: {self.detail}" if self.detail else self.code

    def is_for_callers(self) -> bool:
        """Whether the detail is about the request. What is about the store may name its hosts and
        files, and stands only in the log of the server."""
        return True

    def plain_text(self) -> str:
        """What happened, without the detail."""
        return f"{self.code}: {self._summary()}"

    def _summary(self) -> str:
        """The docstring of the class, in one line."""
        return " ".join((inspect.getdoc(type(self)) or self.code).split())

    def body(self) -> dict[str, object]:
        """The error as a REST answer."""
        body: dict[str, object] = {
            "error": self.text() if self.is_for_callers() else self.plain_text(),
            "kind": self.code,
            "retryable": self.retryable,
        }
        if self.details:
            body["details"] = dict(self.details)
        return body


class NotFoundError(FlowFabricError, status=404):
    """What you asked for does not exist."""


class ValidationError(FlowFabricError, status=400):
    """The request cannot be right, whatever the state: change it before you send it again."""


class ContentionError(FlowFabricError, status=409):
    """Somebody else was faster; what you saw is no longer so."""


class ConflictError(FlowFabricError, status=409):
    """The request contradicts something already stored."""


class StateError(FlowFabricError, status=409):
    """The operation does not apply to the present state."""


class BugError(FlowFabricError, category="bug", status=500):
    """The engine or its stored data is broken: raise an alert."""


class ServiceError(FlowFabricError, status=503):
    """The server could not do it in time, or not now."""

    def text(self) -> str:
        """The sentence alone, if there is one."""
        return self.detail or self.code


class TransportError(FlowFabricError, status=500):
    """The conversation with the store failed; says nothing about the request itself."""

    def is_for_callers(self) -> bool:
        return False

    def plain_text(self) -> str:
        context = self.details.get("context")
        what = self._summary()
        return f"backend ({context}): {what}" if context else f"backend: {what}"

    def text(self) -> str:
        """That it was the store, and with what it was busy."""
        context = self.details.get("context")
        return f"backend ({context}): {self.detail}" if context else f"backend: {self.detail}"


class SubscriptionError(FlowFabricError):
    """An event subscription was interrupted; never an HTTP answer."""


class LocalError(FlowFabricError):
    """Found on the caller's side, without an answer of the engine."""
