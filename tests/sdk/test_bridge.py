"""Callbacks: who shows the token has its signal delivered, on every home."""

from uuid import uuid4

import httpx

from flowfabric import Context, FlowFabric
from flowfabric.core.tokens import WaitpointToken
from flowfabric.fabric.bridge import CallbackRoute
from tests.sdk.until import reaches


async def _waiting(fabric: FlowFabric, execution_id: str) -> tuple[str, WaitpointToken]:
    """The waitpoint it waits at, and the token for it."""
    port = await fabric.submitter()
    found = await port.waitpoints(execution_id)
    told = await port.waitpoint_token(execution_id, found[0].waitpoint_id)
    return found[0].waitpoint_id, told.token


async def test_a_callback_with_the_token_resumes(fabric: FlowFabric) -> None:
    @fabric.task()
    async def wait(ctx: Context) -> object:
        signal = await ctx.wait_for("paid", timeout="1m")
        assert signal is not None
        return signal.payload

    transport = httpx.ASGITransport(CallbackRoute(fabric, "paid", "shop"))
    async with (
        fabric.worker(),
        httpx.AsyncClient(transport=transport, base_url="http://shop/hooks") as client,
    ):
        run = await wait.submit()
        await reaches(fabric, run, "suspended")
        waitpoint, token = await _waiting(fabric, run.id)
        path, known = f"/{run.id}/{waitpoint}", {"authorization": f"Bearer {token.reveal()}"}
        assert (await client.get(path, headers=known)).status_code == 405
        assert (await client.post(path)).status_code == 401
        text = token.reveal()
        changed = text[:-1] + ("0" if text[-1] != "0" else "1")
        wrong = {"authorization": f"Bearer {changed}"}
        assert (await client.post(path, headers=wrong)).status_code == 401
        nowhere = f"/{run.id}/{uuid4()}"
        assert (await client.post(nowhere, headers=known)).status_code == 404
        large = await client.post(path, headers=known, content=b"x" * 65_537)
        assert large.status_code == 413
        keyed = {**known, "idempotency-key": "order 7"}
        told = await client.post(path, headers=keyed, content=b'{"sum": 7}')
        assert told.status_code == 200, told.text
        assert told.json()["outcome"] == "accepted"
        assert told.json()["effect"] == "resume_condition_satisfied"
        assert await run.result(timeout="20s") == {"sum": 7}
        # Its sender may not have got the answer: the repeat is known, closed or not.
        repeated = await client.post(path, headers=keyed, content=b'{"sum": 7}')
        assert (repeated.status_code, repeated.json()["outcome"]) == (200, "duplicate")
        first, again = told.json()["signal_id"], repeated.json()["existing_signal_id"]
        assert first == again
        late = await client.post(path, headers={**known, "idempotency-key": "order 8"})
        assert (late.status_code, late.json()["kind"]) == (409, "target_not_signalable")
        assert (await client.post(path, headers={**keyed, **wrong})).status_code == 404
        assert (await client.post(nowhere, headers=keyed)).status_code == 404
