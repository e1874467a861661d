"""Executions: submit, read, list, and act on one."""

from collections.abc import Mapping

from flowfabric.client.admin.asking import Asking
from flowfabric.client.ends import Ends
from flowfabric.client.questions import execution, get, post, put, waiting
from flowfabric.errors import NotFound
from flowfabric.operations.executions import Executions, FoundExecution, Search
from flowfabric.operations.types import Page
from flowfabric.ports.worker import Ended
from flowfabric.wire import executions as wire
from flowfabric.wire.explanations import Explanation
from flowfabric.wire.signals import ResumeSignals


class ExecutionAdmin(Asking, Executions):
    # ---- read

    async def state(self, execution_id: str, wait_ms: int = 0) -> str:
        """The public state; with a wait as soon as it is final, or when the time is up."""
        question = waiting(execution(execution_id, "state"), "wait_ms", wait_ms)
        return await self._ask(question, str)

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

    async def attempts(self, execution_id: str) -> wire.Attempts:
        return await self._ask(get(execution(execution_id, "attempts")), wire.Attempts)

    async def history(
        self, execution_id: str, cursor: str = "", limit: int = 1_000
    ) -> wire.History:
        question = get(execution(execution_id, "history"), cursor=cursor, limit=limit)
        return await self._ask(question, wire.History)

    async def upstreams(self, execution_id: str, *, results: bool = False) -> wire.Upstreams:
        question = get(execution(execution_id, "upstreams"), results="true" if results else "false")
        return await self._ask(question, wire.Upstreams)

    async def journal(self, execution_id: str, after: int = 0, limit: int = 100) -> wire.Journal:
        question = get(execution(execution_id, "journal"), after=after, limit=limit)
        return await self._ask(question, wire.Journal)

    async def resume_signals(
        self, execution_id: str, attempt_index: int | None = None
    ) -> ResumeSignals:
        question = get(execution(execution_id, "resume-signals"), attempt_index=attempt_index)
        return await self._ask(question, ResumeSignals)

    async def explain(self, execution_id: str) -> Explanation:
        """Everything that keeps it from running."""
        return await self._ask(get(execution(execution_id, "explain")), Explanation)

    # ---- list

    async def list_suspended(
        self, namespace: str = "default", cursor: str = "", limit: int = 50
    ) -> Page[FoundExecution]:
        return await self.search(
            Search(namespace=namespace, state=("suspended",), cursor=cursor, limit=limit)
        )

    async def list_executions(
        self, partition: int, cursor: str = "", limit: int = 50
    ) -> wire.ExecutionIds:
        """Ids of one partition in order."""
        question = get("/v1/executions", partition=partition, cursor=cursor, limit=limit)
        return await self._ask(question, wire.ExecutionIds)

    async def list_lane(
        self, lane: str, state: str, *, namespace: str = "default", offset: int = 0, limit: int = 50
    ) -> wire.Listed:
        """One view of a lane in its own order."""
        question = get(
            "/v1/executions",
            lane=lane,
            state=state,
            namespace=namespace,
            offset=offset,
            limit=limit,
        )
        return await self._ask(question, wire.Listed)

    async def count(self, lane: str = "", namespace: str = "default") -> wire.Counts:
        """How many executions are in each public state."""
        question = get("/v1/executions/count", lane=lane, namespace=namespace)
        return await self._ask(question, wire.Counts)

    # ---- act

    async def replay(
        self, execution_id: str, reason: str = "", requested_by: str = ""
    ) -> wire.PublicState:
        body = wire.Replay(reason=reason, requested_by=requested_by)
        question = post(execution(execution_id, "replay"), body, is_safe=False)
        return (await self._ask(question, wire.ReplayAnswer)).replayed

    async def set_execution_tags(self, execution_id: str, tags: Mapping[str, str]) -> wire.TagCount:
        body = wire.SetTags(tags=dict(tags))
        question = put(execution(execution_id, "tags"), body)
        return (await self._ask(question, wire.TagsAnswer)).updated

    async def resume(
        self,
        execution_id: str,
        trigger_type: str = "operator",
        resume_delay_ms: int | None = None,
    ) -> wire.PublicState:
        body = wire.Resume(trigger_type=trigger_type, resume_delay_ms=resume_delay_ms)
        question = post(execution(execution_id, "resume"), body, is_safe=False)
        return (await self._ask(question, wire.ResumeAnswer)).resumed

    async def revoke_lease(self, execution_id: str) -> wire.RevokeAnswer:
        question = post(execution(execution_id, "revoke-lease"))
        return await self._ask(question, wire.RevokeAnswer)

    async def reclaim(self, execution_id: str, body: wire.Reclaim) -> wire.ReclaimAnswer:
        """Reserve lost work for one worker."""
        question = post(execution(execution_id, "reclaim"), body, is_safe=False)
        answer: wire.ReclaimAnswer = await self._ask_union(question, wire.ReclaimAnswer)
        return answer
