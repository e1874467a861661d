"""What goes beyond one declared operation on executions, and raw bytes."""

from flowfabric.client.admin.asking import Asking
from flowfabric.client.ends import Ends
from flowfabric.client.questions import execution, get
from flowfabric.errors import NotFound
from flowfabric.operations.ends import Ended
from flowfabric.operations.executions import Executions, FoundExecution, Search
from flowfabric.operations.types import Page
from flowfabric.wire import executions as wire


class ExecutionAdmin(Asking, Executions):
    # ---- read

    async def result(self, execution_id: str) -> bytes | None:
        """The bytes of a result; None while there is none."""
        try:
            return await self._fetch(get(execution(execution_id, "result")))
        except NotFound:
            return None

    async def input(self, execution_id: str) -> bytes:
        return await self._fetch(get(execution(execution_id, "input")))

    async def read_context(self, execution_id: str) -> wire.ExecutionContext:
        """What a handler is given to work on: input, kind and tags."""
        shown = await self.describe_execution(execution_id)
        return wire.ExecutionContext(
            input_payload=await self.input(execution_id),
            execution_kind=shown.execution_kind,
            tags=shown.tags,
        )

    async def wait_for_terminal(
        self, execution_id: str, timeout_s: float | None = None
    ) -> Ended | None:
        """How it ended, as soon as it has; None when the time is up before."""
        return await Ends(await self._reach()).wait(execution_id, timeout_s)

    # ---- list

    async def list_suspended(
        self, namespace: str = "default", cursor: str = "", limit: int = 50
    ) -> Page[FoundExecution]:
        return await self.search(
            Search(namespace=namespace, state=("suspended",), cursor=cursor, limit=limit)
        )
