"""How an execution ended, told by a server in several answers."""

import pytest

from flowfabric import FlowFabric
from flowfabric.client.rest import Rest
from flowfabric.client.waiting import Ends
from flowfabric.core.tokens import Secret
from flowfabric.operations.execution_queries import ATTEMPT_HEADER, ENCODING_HEADER
from tests.client.scripted import answer, refusal, saying
from tests.serving import TOKEN, serving

ID = "{fp:1}:00000000-0000-4000-8000-000000000000"
NOT_YET = refusal(404, "not_found", retryable=False)
RESULT = answer(200, b"42", **{ATTEMPT_HEADER: "1", ENCODING_HEADER: "json"})


async def described() -> bytes:
    """What a server shows of an execution that completed."""
    async with serving() as server, FlowFabric(server.url, token=TOKEN) as fabric:
        run = await fabric.submit("k")
        async with fabric.claimer() as claimer:
            task = await claimer.claim_next()
            assert task is not None
            await task.complete()
        return answer(200, await fabric.admin.describe_execution(run.id))


@pytest.mark.parametrize(("last", "result"), [(RESULT, b"42"), (NOT_YET, None)])
async def test_a_result_that_comes_between_two_questions_is_not_missed(
    last: bytes, result: bytes | None
) -> None:
    async with saying(NOT_YET, await described(), last) as scripted:
        rest = Rest(scripted.url, Secret(""))
        try:
            ended = await Ends(rest).look(ID)
        finally:
            await rest.close()
    assert ended is not None
    assert (ended.state, ended.result) == ("completed", result)
