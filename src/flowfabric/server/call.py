"""One request on its way through its handler."""

from typing import Any, Final, Generic, TypeVar

from flowfabric.engine import Engine
from flowfabric.errors import InvalidInput
from flowfabric.operations.types import Owned
from flowfabric.server.auth import Caller
from flowfabric.server.reading import Receive
from flowfabric.server.route import Route
from flowfabric.server.services import Services
from flowfabric.server.waiting import CancellableWait
from flowfabric.telemetry.traces import given_parent

_EXECUTION: Final = Owned("execution")

B = TypeVar("B")
Q = TypeVar("Q")


class Call(Generic[B, Q]):
    """Everything a handler may look at; body and query are of the types it is declared with."""

    __slots__ = (
        "body",
        "caller",
        "engine",
        "headers",
        "path",
        "query",
        "receive",
        "route",
        "services",
    )

    body: B
    query: Q

    def __init__(self, services: Services, route: Route, caller: Caller, receive: Receive) -> None:
        self.services = services
        self.engine: Engine = services.engine
        self.route = route
        self.caller = caller
        self.receive = receive
        self.headers: dict[bytes, bytes] = {}
        self.path: dict[str, Any] = {}

    @property
    def execution_id(self) -> str:
        return str(self.path["execution_id"])

    def require_same_id(self, name: str, given: Any) -> None:
        """An id that the body repeats must be the one of the path."""
        if given is not None and given != self.path[name]:
            raise InvalidInput(f"path {name} does not match body {name}")

    @property
    def traceparent(self) -> str:
        """The trace this call belongs to, "" for none."""
        header = self.headers.get(b"traceparent")
        sent = given_parent(header.decode("latin-1")) if header else ""
        return self.services.traces.current(sent)

    def cancellable_wait(self) -> CancellableWait:
        """For a handler that waits: ends when the client goes or the server stops."""
        return CancellableWait(self.services.drain, self.receive, self.route.name)

    async def authorize_execution(self, execution_id: str) -> None:
        """Refuse a caller of some namespaces that names an execution of another one."""
        await self.engine.owners.check([(_EXECUTION, execution_id)], self.caller.namespaces)
