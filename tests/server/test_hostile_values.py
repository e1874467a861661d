"""Forged tokens open nothing, and no two names are taken for one."""

import itertools
from collections.abc import Iterator
from typing import Any

from tests.server.driving import Served
from tests.server.hostility import some
from tests.server.test_signals import signal, suspended

# Tokens and names tried by `make test`.
FEW = 60


def forged(token: str, other: str) -> Iterator[str]:
    """Texts that are nearly the token, made of it and of one that belongs to somebody else."""
    kid, _, digest = token.partition(":")
    _, _, foreign = other.partition(":")
    yield from ("", ":", kid, digest, f"{kid}:", f":{digest}", f"{kid}:{foreign}", other)
    yield from (
        f"{name}:{digest}" for name in ("k0", "k2", "K1", "", "../k1", "k1\u0000", "k" * 999)
    )
    yield from (token[:at] for at in range(1, len(token)))
    yield from (token + more for more in ("0", "00", " ", "\n", ":", "\u0000", "=", "a" * 10_000))
    yield from (f"{space}{token}" for space in (" ", "\t", "\u00a0", "\ufeff"))
    yield token.upper()
    for at, char in itertools.product(range(len(kid) + 1, len(token)), "0f8Xé"):
        if token[at] != char:
            yield token[:at] + char + token[at + 1 :]
    yield from (f"{kid}:{digit * len(digest)}" for digit in "0123456789abcdef")


async def test_a_forged_token_signals_nothing(served: Served) -> None:
    own, waitpoint = await suspended(served, "go")
    _, theirs = await suspended(served, "go")
    token = waitpoint["waitpoint_token"]
    texts = list(dict.fromkeys(forged(token, theirs["waitpoint_token"])))
    assert len(texts) > 300
    assert token not in texts
    line = f"POST /v1/executions/{own}/signal"
    for text in some(texts, FEW):
        body = {**signal(waitpoint), "waitpoint_token": text}
        answer = await served.call(line, body)
        assert 400 <= answer.status_code < 500, (text, answer.text)
        assert token not in answer.text
    assert await served.done(f"GET /v1/executions/{own}/state") == "suspended"
    assert (await served.done(line, signal(waitpoint)))["outcome"]


# What stores and protocols give a meaning to.
PIECES = [
    *("a", "b", ":", "::", "{", "}", "{a}", "{fp:1}", "/", "..", "%2f", "%", "*", "?", "[a-z]"),
    *("|", ",", ";", "'", '"', "\\", "--", "$1", "\x1f", " ", "\t", "\n", "\r\n", "é", "e\u0301"),
    *("İ", "ı", "ﬀ", "\u200b", "\u202e", "\U0001f600", "A", "0", "-1", "null", "NaN", "default"),
]


def names() -> list[str]:
    return sorted({"".join(pair) for pair in itertools.product(PIECES, ["", *PIECES])})


async def test_no_two_keys_are_taken_for_one(served: Served) -> None:
    """Each key finds the execution that was submitted with it, and no other."""
    found: dict[tuple[str, str], str] = {}
    chosen = some(names(), FEW)
    for namespace, name in itertools.product(("a", "b"), chosen):
        body: dict[str, Any] = {
            "lane_id": "default",
            "execution_kind": "x",
            "namespace": namespace,
            "idempotency_key": name,
        }
        first = await served.call("POST /v1/executions", body)
        assert first.status_code in (201, 400, 422), (name, first.text)
        if first.status_code == 201:
            found[namespace, name] = first.json()["execution_id"]
            again = await served.done("POST /v1/executions", body)
            assert again == {"outcome": "duplicate", "execution_id": found[namespace, name]}
    assert len(set(found.values())) == len(found) > FEW


async def test_no_two_flows_of_keys_are_taken_for_one(served: Served) -> None:
    flows: dict[str, str] = {}
    for name in some(names(), FEW // 2):
        body = {
            "nodes": [{"name": "a", "lane_id": "default", "execution_kind": "x"}],
            "idempotency_key": name,
        }
        answer = await served.call("POST /v1/flows:submit", body)
        assert answer.status_code in (201, 400, 422), (name, answer.text)
        if answer.status_code == 201:
            flows[name] = answer.json()["flow_id"]
    assert len(set(flows.values())) == len(flows) > 10


async def test_no_two_lanes_are_taken_for_one(served: Served) -> None:
    """Lanes are names in keys, topics and paths."""
    counted = {}
    for number, name in enumerate(some(names(), FEW)):
        body = {"lane_id": name, "execution_kind": f"kind-{number}"}
        answer = await served.call("POST /v1/executions", body)
        assert answer.status_code in (201, 400, 422), (name, answer.text)
        if answer.status_code == 201:
            counted[name] = f"kind-{number}"
    for name, kind in counted.items():
        query = {"namespace": "default", "lane": name}
        page = await served.done("GET /v1/executions/search", params=query)
        assert [one["execution_kind"] for one in page["items"]] == [kind], name
