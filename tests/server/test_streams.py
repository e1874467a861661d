"""Output of attempts over REST: ranges, tails, summaries and Server-Sent Events."""

import asyncio
import base64
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.driving import Served, fence
from tests.server.events import EventSource

EVERY_BYTE = bytes(range(256))


def b64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


async def append(served: Served, held: dict[str, Any], *payloads: bytes, index: int = 0) -> Any:
    frames = [{"frame_type": "log", "payload": b64(payload)} for payload in payloads]
    item = {**held, "attempt_index": index, "frames": frames}
    answer = await served.done("POST /v1/worker/frames", {"items": [item]})
    return answer["items"][0]


def stream(held: dict[str, Any], rest: str = "") -> str:
    return f"/v1/executions/{held['execution_id']}/attempts/0/stream{rest}"


async def test_frames_come_back_as_they_were_sent(served: Served) -> None:
    held = await served.held()
    done = await append(served, held, EVERY_BYTE, b"two")
    page = await served.done(f"GET {stream(held)}")
    assert [one["id"] for one in page["frames"]] == done["ok"]["ids"]
    assert [base64.b64decode(one["fields"]["payload"]) for one in page["frames"]] == [
        EVERY_BYTE,
        b"two",
    ]
    assert list(page["frames"][0]["fields"]) == sorted(page["frames"][0]["fields"])
    assert page["count"] == 2
    assert "closed_at" not in page
    part = await served.done(f"GET {stream(held)}?from={done['ok']['ids'][1]}&to=end&limit=1")
    assert part["count"] == 1


async def test_a_frame_without_the_lease_is_an_error_of_its_item(served: Served) -> None:
    held = await served.held()
    good = {**held, "attempt_index": 0, "frames": [{"frame_type": "x", "payload": ""}]}
    answer = await served.done(
        "POST /v1/worker/frames", {"items": [{**good, "lease_epoch": 9}, good]}
    )
    first, second = answer["items"]
    assert first["error"]["kind"] == "stale_owner_cannot_append"
    assert second["ok"]["frame_count"] == 1
    await served.finish(held, complete={})
    closed = await served.done("POST /v1/worker/frames", {"items": [good]})
    assert closed["items"][0]["error"]["kind"] in ("stream_closed", "stale_owner_cannot_append")


async def test_a_waiting_tail_wakes_on_a_frame_and_on_the_close(served: Served) -> None:
    held = await served.held()
    path = f"GET {stream(held)}/tail?block_ms=20000"
    waiting = asyncio.create_task(served.done(path))
    await append(served, held, b"one")
    async with asyncio.timeout(15):
        page = await waiting
    assert page["count"] == 1
    waiting = asyncio.create_task(served.done(f"{path}&after={page['next_after']}"))
    await served.finish(held, complete={})
    async with asyncio.timeout(15):
        closed = await waiting
    assert closed["closed_reason"] == "attempt_success"


@pytest.mark.parametrize("after", ["start", "end", "x", "1-2-3", "-1"])
async def test_a_tail_takes_only_real_positions(after: str, served: Served) -> None:
    held = await served.held()
    assert await served.refused(f"GET {stream(held)}/tail?after={after}") == (
        400,
        "invalid_input",
    )


async def test_beyond_the_pool_tails_are_refused_at_once_and_streams_are_not(
    serve: Serve,
) -> None:
    served = await serve(max_concurrent_stream_ops=2)
    held = await served.held()
    path = f"GET {stream(held)}/tail?block_ms=20000"
    waiting = [asyncio.create_task(served.call(path)) for _ in range(5)]
    async with asyncio.timeout(15):
        done, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        while len(done) < 3:
            done, left = await asyncio.wait(waiting, timeout=0.05)
    for task in done:
        refused = task.result()
        assert refused.status_code == 429
        assert refused.json()["kind"] == "resource_exhausted"
        assert refused.json()["retryable"] is True
        assert int(refused.headers["retry-after"]) >= 1
    async with EventSource(served.application, stream(held, "/sse"), {}) as source:
        assert source.status == 200
        await append(served, held, b"x")
        assert [one.name for one in await source.take(1)] == ["frame"]
    answers = await asyncio.gather(*left)
    assert {answer.status_code for answer in answers} == {200}


async def test_best_effort_frames_can_be_left_out(served: Served) -> None:
    held = await served.held()
    frames = [
        {"frame_type": "a", "payload": "", "mode": "best_effort", "ttl_ms": 60_000},
        {"frame_type": "b", "payload": ""},
    ]
    item = {**held, "attempt_index": 0, "frames": frames}
    await served.done("POST /v1/worker/frames", {"items": [item]})
    shown = await served.done(f"GET {stream(held)}?visibility=exclude_best_effort")
    assert [one["fields"]["frame_type"] for one in shown["frames"]] == ["b"]


async def test_a_summary_is_merged_and_missing_before(served: Served) -> None:
    held = await served.held()
    path = f"GET /v1/executions/{held['execution_id']}/attempts/0/summary"
    assert await served.refused(path) == (404, "not_found")
    frame = {"frame_type": "s", "payload": b64(b'{"a":1}'), "mode": "summary"}
    item = {**held, "attempt_index": 0, "frames": [frame]}
    await served.done("POST /v1/worker/frames", {"items": [item]})
    found = await served.done(path)
    assert found["document"] == {"a": 1}
    assert found["version"] == 1


async def test_an_event_stream_follows_to_the_close(served: Served) -> None:
    held = await served.held()
    await append(served, held, b"one")
    async with EventSource(served.application, stream(held, "/sse"), {}) as source:
        assert source.headers["content-type"] == "text/event-stream"
        assert source.headers["cache-control"] == "no-store"
        assert source.headers["x-accel-buffering"] == "no"
        (first,) = await source.take(1)
        await append(served, held, b"two")
        (second,) = await source.take(1)
        await served.finish(held, complete={})
        (closed,) = await source.take(1)
        assert [one async for one in source.events()] == []
    assert (first.name, second.name, closed.name) == ("frame", "frame", "closed")
    assert first.own_id == first.data["id"]
    assert closed.data["closed_reason"] == "attempt_success"


async def test_frames_of_text_are_text_in_an_event_stream(served: Served) -> None:
    held = await served.held()
    await append(served, held, "naïve".encode(), b"\xff\xfe")
    async with EventSource(served.application, stream(held, "/sse?after=0-0"), {}) as source:
        text, other = await source.take(2)
    assert text.data["text"] == "naïve"
    assert text.data["fields"]["payload"] == b64("naïve".encode())
    assert "text" not in other.data
    assert other.data["fields"]["payload"] == b64(b"\xff\xfe")


async def test_a_cut_stream_resumes_without_gap_or_repeat(served: Served) -> None:
    held = await served.held()
    ids = (await append(served, held, *[str(n).encode() for n in range(10)]))["ok"]["ids"]
    seen: list[str] = []
    last: dict[str, str] = {}
    while len(seen) < 10:
        async with EventSource(served.application, stream(held, "/sse?after=0-0"), last) as source:
            taken = await source.take(3 if len(seen) < 9 else 1)
            seen += [one.own_id for one in taken]
        last = {"Last-Event-ID": seen[-1]}
    assert seen[:10] == ids


async def test_the_latest_attempt_is_followed_to_the_next(served: Served) -> None:
    retry = {"retry_policy": {"max_retries": 1, "backoff": {"type": "fixed", "delay_ms": 1}}}
    held = await served.held(policy=retry)
    await append(served, held, b"first")
    latest = f"/v1/executions/{held['execution_id']}/attempts/latest/stream/sse"
    async with EventSource(served.application, latest, {}) as source:
        begun, frame = await source.take(2)
        assert (begun.name, begun.data) == (
            "attempt",
            {"attempt_index": 0, "attempt_type": "initial"},
        )
        assert frame.own_id.startswith("0/")
        await served.finish(held, fail={"reason": "x", "category": "transient"})
        again = fence(await served.claim(wait_ms=10_000))
        await append(served, again, b"second", index=1)
        (next_attempt, second) = await source.take(2)
        assert next_attempt.data == {"attempt_index": 1, "attempt_type": "retry"}
        assert second.own_id.startswith("1/")
        await served.finish(again, complete={})
        (closed,) = await source.take(1)
        assert closed.name == "closed"
    resumed = {"Last-Event-ID": second.own_id}
    async with EventSource(served.application, latest, resumed) as source:
        assert [one.name for one in await source.take(2)] == ["attempt", "closed"]


async def test_streams_beyond_their_pool_are_refused_and_a_gone_client_frees_its_place(
    serve: Serve,
) -> None:
    served = await serve(max_sse_streams=1)
    held = await served.held()
    async with EventSource(served.application, stream(held, "/sse"), {}):
        assert await served.refused(f"GET {stream(held)}/sse") == (429, "resource_exhausted")
        feed = {"accept": "text/event-stream"}
        assert (await served.call("GET /v1/events", headers=feed)).status_code == 429
    async with EventSource(served.application, stream(held, "/sse"), {}) as source:
        assert source.status == 200


async def test_a_look_at_the_head_of_a_stream_holds_no_place(serve: Serve) -> None:
    served = await serve(max_sse_streams=1)
    held = await served.held()
    for _ in range(3):
        answer = await served.call(f"HEAD {stream(held)}/sse")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("after", ["x", "start", "5/x", "x/0-0"])
async def test_a_bad_position_of_a_stream_is_refused(after: str, served: Served) -> None:
    held = await served.held()
    for idx in ("0", "latest"):
        path = f"GET /v1/executions/{held['execution_id']}/attempts/{idx}/stream/sse"
        assert await served.refused(f"{path}?after={after}") == (400, "invalid_input")


async def test_events_are_read_in_pages_and_awaited(served: Served) -> None:
    now = (await served.done("GET /v1/events"))["next_cursor"]
    waiting = asyncio.create_task(
        served.done(f"GET /v1/events?families=completion&cursor={now}&wait_ms=20000")
    )
    held = await served.held()
    await served.finish(held, complete={})
    async with asyncio.timeout(15):
        page = await waiting
    (event,) = page["items"]
    assert (event["family"], event["outcome"]) == ("completion", "success")
    assert event["execution_id"] == held["execution_id"]
    everything = await served.done(f"GET /v1/events?cursor={now}")
    assert [one["family"] for one in everything["items"]] == ["lease", "completion", "lease"]
    after = await served.done(f"GET /v1/events?cursor={everything['next_cursor']}")
    assert after["items"] == []


async def test_events_are_followed_and_resumed(served: Served) -> None:
    headers = {"accept": "text/event-stream"}
    async with EventSource(served.application, "/v1/events?families=completion", headers) as one:
        first = await served.held()
        await served.finish(first, complete={})
        (told,) = await one.take(1)
    second = await served.held()
    await served.finish(second, fail={"reason": "x", "category": "permanent"})
    headers["Last-Event-ID"] = told.own_id
    async with EventSource(served.application, "/v1/events?families=completion", headers) as two:
        (later,) = await two.take(1)
    assert told.data["execution_id"] == first["execution_id"]
    assert (later.name, later.data["outcome"]) == ("completion", "failure")


@pytest.mark.parametrize("last", ["!!", "7u7u7u7u7u7u"])
async def test_a_foreign_last_event_id_is_refused_before_the_stream_begins(
    last: str, served: Served
) -> None:
    headers = {"accept": "text/event-stream", "last-event-id": last}
    answer = await served.call("GET /v1/events", headers=headers)
    assert (answer.status_code, answer.json()["kind"]) == (400, "invalid_input")


async def test_events_of_a_tag(served: Served) -> None:
    now = (await served.done("GET /v1/events"))["next_cursor"]
    for team in ("a", "b"):
        own = await served.submit(tags={"app.team": team})
        await served.done(f"POST /v1/executions/{own}/cancel", {"reason": "x"})
    found = await served.done(f"GET /v1/events?tag=app.team=b&cursor={now}&families=completion")
    assert len(found["items"]) == 1
