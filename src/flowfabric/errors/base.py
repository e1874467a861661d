"""The root of the exception tree and its families."""

from collections.abc import Mapping
from typing import ClassVar, Literal

Category = Literal["terminal", "retryable", "cooperative", "informational", "bug"]


class FlowFabricError(Exception):
    """Everything FlowFabric raises on purpose.

    What never varies for a code (its category, HTTP status, whether a retry can help) sits on the
    class; `detail` and `details` say what happened this time. Only leaves, which have a code, are
    raised.
    """

    code: ClassVar[str] = ""
    category: ClassVar[Category] = "terminal"
    status: ClassVar[int | None] = None
    retryable: ClassVar[bool] = False

    detail: str
    details: Mapping[str, object]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.retryable = cls.category == "retryable"

    def __init__(self, detail: str = "", /, **details: object) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a family: raise one of its leaves")
        # Unpickling calls the class with `args` and then restores __dict__, details included.
        super().__init__(detail)
        self.detail = detail
        self.details = details

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code

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
        return str(self)

    def body(self) -> dict[str, object]:
        """The error as a REST answer."""
        body: dict[str, object] = {
            "error": self.text(),
            "kind": self.code,
            "retryable": self.retryable,
        }
        if self.details:
            body["details"] = dict(self.details)
        return body


class NotFoundError(FlowFabricError):
    """What you asked for does not exist."""

    status: ClassVar[int | None] = 404


class ValidationError(FlowFabricError):
    """The request cannot be right, whatever the state: change it before you send it again."""

    status: ClassVar[int | None] = 400


class ContentionError(FlowFabricError):
    """Somebody else was faster; what you saw is no longer so."""

    status: ClassVar[int | None] = 409


class ConflictError(FlowFabricError):
    """The request contradicts something already stored."""

    status: ClassVar[int | None] = 409


class StateError(FlowFabricError):
    """The operation does not apply to the present state."""

    status: ClassVar[int | None] = 409


class BugError(FlowFabricError):
    """The engine or its stored data is broken: raise an alert."""

    category: ClassVar[Category] = "bug"
    status: ClassVar[int | None] = 500


class ServiceError(FlowFabricError):
    """The server could not do it in time, or not now."""

    status: ClassVar[int | None] = 503

    def text(self) -> str:
        """The sentence alone, if there is one."""
        return self.detail or self.code


class TransportError(FlowFabricError):
    """The conversation with the store failed; says nothing about the request itself."""

    status: ClassVar[int | None] = 500

    def text(self) -> str:
        """That it was the store, and with what it was busy."""
        context = self.details.get("context")
        return f"backend ({context}): {self.detail}" if context else f"backend: {self.detail}"


class SubscriptionError(FlowFabricError):
    """An event subscription was interrupted; never an HTTP answer."""


class LocalError(FlowFabricError):
    """Found on the caller's side, without an answer of the engine."""
