"""Callbacks: who shows the token has its signal delivered, on every home."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from flowfabric import Context, FlowFabric
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.tokens import WaitpointToken
from flowfabric.fabric.bridge import (
    BridgeSignal,
    CallbackRoute,
    TokenMismatch,
    UnknownWaitpoint,
    verify_and_deliver,
)
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


async def test_what_became_of_a_callback_is_a_value(fabric: FlowFabric) -> None:
    @fabric.task()
    async def wait(ctx: Context) -> object:
        signal = await ctx.wait_for("paid", timeout="1m")
        assert signal is not None
        return signal.payload

    async with fabric.worker():
        run = await wait.submit()
        await reaches(fabric, run, "suspended")
        waitpoint, token = await _waiting(fabric, run.id)
        paid = BridgeSignal(name="paid", payload=b"7", idempotency_key="order 7")
        nowhere = str(uuid4())
        absent = f"{run.id.partition('}')[0]}}}:{nowhere}"
        for unknown in ((run.id, nowhere), (absent, waitpoint)):
            found = await verify_and_deliver(fabric, *unknown, token, paid)
            assert found == UnknownWaitpoint()
        assert (
            await verify_and_deliver(fabric, absent, waitpoint, token, paid) == UnknownWaitpoint()
        )
        wrong = token.reveal().upper()
        assert await verify_and_deliver(fabric, run.id, waitpoint, wrong, paid) == TokenMismatch()
        assert await run.state() == "suspended"
        done = await verify_and_deliver(fabric, run.id, waitpoint, token.reveal(), paid)
        assert isinstance(done, Accepted)
        assert await run.result(timeout="20s") == 7
        again = await verify_and_deliver(fabric, run.id, waitpoint, token, paid)
        assert again == Duplicate(existing_signal_id=done.signal_id)
    assert "order 7" not in repr(paid)
    assert token.reveal() not in repr((paid, done, again))


async def test_a_callback_that_is_cut_off_delivers_nothing(fabric: FlowFabric) -> None:
    run = await fabric.submit("k")
    route = CallbackRoute(fabric, "paid", "shop")
    sent: list[Any] = []

    async def ask(path: str, *messages: dict[str, Any]) -> int:
        left = iter(messages)

        async def receive() -> dict[str, Any]:
            return next(left)

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", b"Bearer x")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await route(scope, receive, send)
        return int(sent[-2]["status"])

    begun = {"type": "http.request", "body": b"{", "more_body": True}
    path = f"/{run.id}/{uuid4()}"
    assert await ask(path, begun, {"type": "http.disconnect"}) == 400
    assert await ask("/", {"type": "http.request"}) == 404
    assert await ask(path, {"type": "http.request"}) == 404
    assert dict(sent[-2]["headers"])[b"cache-control"] == b"no-store"
    with pytest.raises(NotImplementedError):
        await route({"type": "websocket"}, None, None)  # type: ignore[arg-type]
