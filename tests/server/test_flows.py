"""Flows over REST: submit, build, cancel, read, replay."""

import base64
from typing import Any
from uuid import uuid4

import pytest

from tests.server.conftest import Serve
from tests.server.driving import Served, fence
from tests.server.samples import EXECUTION, UUID
from tests.server.tokens import bearer, token

LATER = 9_000_000_000_000
NOBODY = "00000000-0000-4000-8000-000000000000"


def node(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "lane_id": "default", "execution_kind": "step", **fields}


def graph(*names: str, arrows: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    edges = [{"from": arrow[0], "to": arrow[1]} for arrow in arrows]
    return {"flow_kind": "etl", "nodes": [node(name) for name in names], "edges": edges, **fields}


async def submitted(served: Served, body: dict[str, Any]) -> dict[str, Any]:
    answer = await served.done("POST /v1/flows:submit", body)
    assert answer["outcome"] == "submitted"
    return dict(answer)


async def end(served: Served, **outcome: Any) -> str:
    """Claim what is next and end it."""
    held = fence(await served.claim())
    await served.finish(held, **outcome)
    return str(held["execution_id"])


# ---- submit


async def test_a_graph_is_submitted_and_runs_in_order(served: Served) -> None:
    body = graph("a", "b", arrows=("ab",), tags={"app.team": "red"})
    body["edges"][0]["data_passing_ref"] = "input"
    answer = await served.call("POST /v1/flows:submit", body)
    assert answer.status_code == 201
    told = answer.json()
    assert set(told) == {"outcome", "flow_id", "graph_revision", "executions"}
    assert told["outcome"] == "submitted"
    assert set(told["executions"]) == {"a", "b"}
    assert await end(served, complete={"result": "ZGF0YQ=="}) == told["executions"]["a"]
    claimed = await served.claim()
    assert claimed["execution_id"] == told["executions"]["b"]
    assert base64.b64decode(claimed["input"]) == b"data"
    assert claimed["flow_id"] == told["flow_id"]
    flow = await served.done(f"GET /v1/flows/{told['flow_id']}")
    assert (flow["public_flow_state"], flow["tags"]) == ("running", {"app.team": "red"})
    assert (flow["members"]["completed"], flow["members"]["active"]) == (1, 1)


async def test_upstreams_are_told_alike_by_their_route_and_with_a_claim(served: Served) -> None:
    body = graph("a", "b", "c", arrows=("ac", "bc"))
    body["edges"][0]["data_passing_ref"] = "draft"
    told = await submitted(served, body)
    path = f"GET /v1/executions/{told['executions']['c']}/upstreams"
    waiting = (await served.done(path))["upstreams"]
    assert sorted(sorted(one) for one in waiting) == [
        ["data_passing_ref", "edge_id", "execution_id"],
        ["edge_id", "execution_id"],
    ]
    for _ in "ab":
        await end(served, complete={"result": "ZGF0YQ==", "encoding": "raw"})
    claimed = await served.claim(upstreams=True)
    route = (await served.done(f"{path}?results=true"))["upstreams"]
    assert route == claimed["upstreams"]
    (draft,) = [one for one in route if "data_passing_ref" in one]
    (plain,) = [one for one in route if "data_passing_ref" not in one]
    assert (draft["data_passing_ref"], draft["outcome"]) == ("draft", "success")
    assert (base64.b64decode(draft["result"]), draft["result_encoding"]) == (b"data", "raw")
    assert not {"result", "result_encoding", "result_deferred"} & set(plain)


async def test_a_repeat_under_its_key_answers_the_same_flow(served: Served) -> None:
    body = graph("a", idempotency_key="once")
    first = await submitted(served, body)
    again = await served.call("POST /v1/flows:submit", body)
    assert (again.status_code, again.json()) == (200, first | {"outcome": "already_submitted"})
    other = graph("a", "b", idempotency_key="once")
    assert await served.refused("POST /v1/flows:submit", other) == (409, "conflict")


async def test_every_field_of_a_node_reaches_the_execution(served: Served) -> None:
    flow_id = str(uuid4())
    body = graph(
        flow_id=flow_id,
        nodes=[
            node(
                "a",
                lane_id="gpu",
                input_payload=base64.b64encode(b"in").decode(),
                payload_encoding="json",
                priority=7,
                policy={"max_reclaim_count": 3},
                tags={"app.team": "red"},
            ),
            node("b", delay_until=9_000_000_000_000, execution_deadline_at=9_500_000_000_000),
        ],
    )
    told = await submitted(served, body)
    assert told["flow_id"] == flow_id
    claimed = await served.claim(lanes=["gpu"])
    assert (claimed["priority"], claimed["payload_encoding"]) == (7, "json")
    assert claimed["tags"] == {"app.team": "red"}
    assert base64.b64decode(claimed["input"]) == b"in"
    state = await served.done(f"GET /v1/executions/{told['executions']['b']}/state")
    assert state == "delayed"


async def test_a_group_fires_by_its_policy(served: Served) -> None:
    any_of = {"kind": "any_of", "on_satisfied": "cancel_remaining"}
    body = graph("a", "b", "c", arrows=("ac", "bc"), groups=[{"to": "c", "policy": any_of}])
    told = await submitted(served, body)
    await end(served, complete={})
    flow = await served.done(f"GET /v1/flows/{told['flow_id']}")
    (group,) = flow["edge_groups"]
    assert group["policy"] == any_of
    assert (group["total_deps"], group["satisfied_count"], group["group_state"]) == (
        2,
        1,
        "satisfied",
    )


REFUSED: list[tuple[dict[str, Any], tuple[int, str]]] = [
    (graph(), (400, "invalid_input")),
    (graph("a", "a"), (400, "invalid_input")),
    (graph("a", arrows=("ax",)), (400, "invalid_input")),
    (graph("a", arrows=("aa",)), (409, "self_referencing_edge")),
    (graph("a", "b", arrows=("ab", "ba")), (409, "cycle_detected")),
    (graph("a", "b", arrows=("ab", "ab")), (409, "dependency_already_exists")),
    (graph("a", groups=[{"to": "a", "policy": {"kind": "all_of"}}]), (400, "invalid_input")),
    (
        graph(
            "a",
            "b",
            arrows=("ab",),
            groups=[{"to": "b", "policy": {"kind": "quorum", "k": 0, "on_satisfied": "let_run"}}],
        ),
        (400, "invalid_input"),
    ),
    (graph(nodes=[node("a", execution_id=EXECUTION)], flow_id=NOBODY), (409, "partition_mismatch")),
    (graph(nodes=[node("a", policy={"x": 1})]), (400, "invalid_policy_json")),
    (
        graph(
            nodes=[node("a", policy={"routing_requirements": {"required_capabilities": ["a,b"]}})]
        ),
        (400, "invalid_capabilities"),
    ),
    (graph(nodes=[node("a", lane_id="closed")]), (409, "lane_not_accepting")),
    (graph(nodes=[node("a", lane_id="a,b")]), (400, "invalid_input")),
    (graph(nodes=[{"name": "a"}]), (422, "invalid_json")),
    (graph(nodes=[node("a", surprise=1)]), (422, "invalid_json")),
    (graph("a", flow_id="x"), (422, "invalid_json")),
]


@pytest.mark.parametrize(("body", "expected"), REFUSED, ids=lambda value: str(value)[-30:])
async def test_a_bad_graph_is_refused_whole(
    served: Served, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    await served.done("PUT /v1/lanes/closed", {"state": "disabled"})
    assert await served.refused("POST /v1/flows:submit", body) == expected
    assert (await served.done("GET /v1/flows/search"))["items"] == []
    assert (await served.done("GET /v1/executions/search"))["items"] == []


async def test_a_cycle_is_told_by_its_names(served: Served) -> None:
    answer = await served.call(
        "POST /v1/flows:submit", graph("a", "b", "c", arrows=("ab", "bc", "cb"))
    )
    assert sorted(answer.json()["details"]["cycle"]) == ["b", "c"]


# ---- build


async def members(served: Served, count: int) -> tuple[str, list[str], int]:
    """A flow with delayed members; its id, theirs, and its revision."""
    flow_id = str(uuid4())
    await served.done("POST /v1/flows", {"flow_id": flow_id, "flow_kind": "etl"})
    ids = [await served.submit(flow_id=flow_id, delay_until=LATER) for _ in range(count)]
    flow = await served.done(f"GET /v1/flows/{flow_id}")
    return flow_id, ids, int(flow["graph_revision"])


async def test_a_flow_is_created_once(served: Served) -> None:
    minted = await served.call("POST /v1/flows", {"flow_kind": "etl"})
    assert minted.status_code == 201
    flow_id = minted.json()["flow_id"]
    assert minted.json() == {"outcome": "created", "flow_id": flow_id}
    again = await served.call("POST /v1/flows", {"flow_kind": "etl", "flow_id": flow_id})
    assert (again.status_code, again.json()) == (
        200,
        {"outcome": "already_satisfied", "flow_id": flow_id},
    )
    for other in ({"flow_kind": "other"}, {"flow_kind": "etl", "namespace": "other"}):
        body = {"flow_id": flow_id, **other}
        assert await served.refused("POST /v1/flows", body) == (409, "conflict")


async def test_executions_join_a_flow(served: Served) -> None:
    flow_id = str(uuid4())
    await served.done("POST /v1/flows", {"flow_id": flow_id, "flow_kind": "etl"})
    line = f"POST /v1/flows/{flow_id}/members"
    home = (await served.submit(flow_id=flow_id)).partition("}")[0] + "}"
    own = await served.submit(execution_id=f"{home}:{uuid4()}")
    first = await served.call(line, {"execution_id": own, "flow_id": flow_id})
    assert first.status_code == 201
    assert first.json() == {"outcome": "added", "execution_id": own, "new_node_count": 2}
    again = await served.call(line, {"execution_id": own})
    assert again.status_code == 200
    assert again.json() == {"outcome": "already_member", "execution_id": own, "node_count": 2}
    absent = {"execution_id": f"{home}:{uuid4()}"}
    assert await served.refused(line, absent) == (404, "execution_not_found")
    elsewhere = {"execution_id": f"{{fp:{(int(home[4:-1]) + 1) % 256}}}:{uuid4()}"}
    assert await served.refused(line, elsewhere) == (409, "partition_mismatch")
    mismatch = {"execution_id": own, "flow_id": NOBODY}
    assert await served.refused(line, mismatch) == (400, "invalid_input")
    foreign = await served.submit(execution_id=f"{home}:{uuid4()}", namespace="other")
    assert await served.refused(line, {"execution_id": foreign}) == (400, "invalid_input")


async def test_edges_are_staged_and_applied(served: Served) -> None:
    flow_id, (a, b, c), revision = await members(served, 3)
    edge_id = str(uuid4())
    body = {
        "edge_id": edge_id,
        "upstream_execution_id": a,
        "downstream_execution_id": b,
        "expected_graph_revision": revision,
        "data_passing_ref": "draft",
    }
    line = f"POST /v1/flows/{flow_id}/edges"
    staged = await served.call(line, body)
    assert staged.status_code == 201
    told = {"outcome": "staged", "edge_id": edge_id, "new_graph_revision": revision + 1}
    assert staged.json() == told
    applying = {"edge_id": edge_id, "downstream_execution_id": b, "graph_revision": 0}
    applied = await served.done(f"{line}/apply", applying)
    assert applied == {"outcome": "applied", "unsatisfied_count": 1}
    assert await served.done(f"{line}/apply", applying) == {"outcome": "already_applied"}
    at_once = {
        **body,
        "edge_id": str(uuid4()),
        "upstream_execution_id": b,
        "downstream_execution_id": c,
        "expected_graph_revision": revision + 1,
        "apply": True,
    }
    answer = await served.done(line, at_once)
    assert answer["unsatisfied_count"] == 1
    page = await served.done(f"GET /v1/flows/{flow_id}/edges?execution_id={a}&direction=outgoing")
    (edge,) = page["items"]
    assert (edge["upstream_execution_id"], edge["data_passing_ref"]) == (a, "draft")
    assert edge["edge_state"] == "open"
    assert "next_cursor" not in page


async def test_edges_are_refused_for_their_reasons(served: Served) -> None:
    flow_id, (a, b), revision = await members(served, 2)
    line = f"POST /v1/flows/{flow_id}/edges"
    body: dict[str, Any] = {
        "edge_id": str(uuid4()),
        "upstream_execution_id": a,
        "downstream_execution_id": b,
        "expected_graph_revision": revision,
    }
    stranger = f"{a.partition('}')[0]}}}:{uuid4()}"
    refused: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"downstream_execution_id": a}, (409, "self_referencing_edge")),
        ({"expected_graph_revision": revision + 9}, (409, "stale_graph_revision")),
        ({"upstream_execution_id": stranger}, (409, "execution_not_in_flow")),
        ({"expected_graph_revision": -1}, (400, "invalid_input")),
        ({"data_passing_ref": "x" * 129}, (400, "invalid_input")),
    ]
    for changes, expected in refused:
        assert await served.refused(line, {**body, **changes}) == expected, changes
    apply_line = f"{line}/apply"
    unknown = {"edge_id": str(uuid4()), "downstream_execution_id": b}
    assert await served.refused(apply_line, unknown) == (400, "invalid_dependency")
    await served.done(line, body)
    back = {
        **body,
        "edge_id": str(uuid4()),
        "upstream_execution_id": b,
        "downstream_execution_id": a,
        "expected_graph_revision": revision + 1,
    }
    assert await served.refused(line, back) == (409, "cycle_detected")
    twice = {**body, "edge_id": str(uuid4()), "expected_graph_revision": revision + 1}
    answer = await served.call(line, twice)
    assert (answer.status_code, answer.json()["kind"]) == (409, "dependency_already_exists")
    assert body["edge_id"] in str(answer.json()["details"])


async def test_an_edge_policy_is_set_until_edges_count(served: Served) -> None:
    flow_id, (a, b), revision = await members(served, 2)
    line = f"PUT /v1/flows/{flow_id}/members/{b}/edge-policy"
    quorum = {"kind": "quorum", "k": 2, "on_satisfied": "let_run"}
    assert await served.done(line, quorum) == {"outcome": "set"}
    assert await served.done(line, quorum) == {"outcome": "already_set"}
    bad: list[dict[str, Any]] = [
        {**quorum, "k": 0},
        {"kind": "most"},
        {"kind": "any_of"},
        {"kind": "all_of", "k": 1},
    ]
    for policy in bad:
        assert await served.refused(line, policy) == (400, "invalid_input"), policy
    edge = {
        "edge_id": str(uuid4()),
        "upstream_execution_id": a,
        "downstream_execution_id": b,
        "expected_graph_revision": revision,
        "apply": True,
    }
    await served.done(f"POST /v1/flows/{flow_id}/edges", edge)
    assert await served.refused(line, {"kind": "all_of"}) == (400, "invalid_input")
    stranger = f"PUT /v1/flows/{flow_id}/members/{EXECUTION}/edge-policy"
    assert await served.refused(stranger, quorum) == (409, "execution_not_in_flow")


async def test_tags_of_a_flow(served: Served) -> None:
    flow_id, _, _ = await members(served, 0)
    line = f"PUT /v1/flows/{flow_id}/tags"
    updated = await served.done(line, {"tags": {"app.team": "red"}})
    assert updated == {"outcome": "updated", "count": 1}
    assert (await served.done(f"GET /v1/flows/{flow_id}"))["tags"] == {"app.team": "red"}
    assert await served.refused(line, {"tags": {"plain": "x"}}) == (400, "invalid_tag_key")


EDITS: list[tuple[str, dict[str, Any]]] = [
    ("POST /v1/flows/{}/members", {"execution_id": "{fp:86}:" + UUID}),
    (
        "POST /v1/flows/{}/edges",
        {
            "edge_id": UUID,
            "upstream_execution_id": "{fp:0}:" + UUID,
            "downstream_execution_id": "{fp:0}:" + NOBODY,
            "expected_graph_revision": 0,
        },
    ),
    ("PUT /v1/flows/{}/tags", {"tags": {"app.a": "b"}}),
    ("POST /v1/flows/{}/cancel", {"reason": "x", "cancellation_policy": "cancel_all"}),
    ("POST /v1/flows/{}/replay", {}),
    ("PUT /v1/flows/{}/members/{{fp:0}}:" + UUID + "/edge-policy", {"kind": "all_of"}),
]


@pytest.mark.parametrize(("line", "body"), EDITS, ids=[line for line, _ in EDITS])
async def test_a_flow_that_is_not_there_is_not_found(
    served: Served, line: str, body: dict[str, Any]
) -> None:
    assert await served.refused(line.format(UUID), body) in [
        (404, "flow_not_found"),
        (409, "partition_mismatch"),
    ]
    assert await served.refused(line.format("x"), body) == (400, "invalid_input")


@pytest.mark.parametrize("tail", ["", "/members", "/edges"])
async def test_reads_of_no_flow_are_not_found(served: Served, tail: str) -> None:
    assert await served.refused(f"GET /v1/flows/{UUID}{tail}") == (404, "flow_not_found")


# ---- cancel


async def cancel(served: Served, flow_id: str, **fields: Any) -> Any:
    body = {"reason": "enough", "cancellation_policy": "cancel_all", **fields}
    return await served.done(f"POST /v1/flows/{flow_id}/cancel", body)


async def test_a_waiting_cancel_ends_every_member(served: Served) -> None:
    told = await submitted(served, graph("a", "b", arrows=("ab",)))
    ids = sorted(told["executions"].values())
    answer = await cancel(served, told["flow_id"], wait=True)
    assert answer["outcome"] == "cancelled"
    assert answer["cancellation_policy"] == "cancel_all"
    assert sorted(answer["member_execution_ids"]) == ids
    for own in ids:
        assert await served.done(f"GET /v1/executions/{own}/state") == "cancelled"
    again = await cancel(served, told["flow_id"], cancellation_policy="flow_only")
    assert again["cancellation_policy"] == "cancel_all"
    flow = await served.done(f"GET /v1/flows/{told['flow_id']}")
    assert (flow["cancel_reason"], flow["cancel_policy"]) == ("enough", "cancel_all")


@pytest.mark.parametrize("wait", [{}, {"wait": False}, {"wait": None}])
async def test_other_cancels_do_not_wait(served: Served, wait: dict[str, Any]) -> None:
    told = await submitted(served, graph("a"))
    answer = await cancel(served, told["flow_id"], **wait)
    assert answer == {
        "outcome": "cancellation_scheduled",
        "cancellation_policy": "cancel_all",
        "member_count": 1,
        "member_execution_ids": list(told["executions"].values()),
    }


@pytest.mark.parametrize("wait", ["true", 1, "yes"])
async def test_a_wait_is_a_boolean_of_the_body(served: Served, wait: object) -> None:
    told = await submitted(served, graph("a"))
    line = f"POST /v1/flows/{told['flow_id']}/cancel"
    assert await served.refused(line, {"wait": wait}) == (422, "invalid_json")
    assert await served.refused(f"{line}?wait=true", {}) == (400, "invalid_input")


async def test_a_cancel_of_the_flow_alone(served: Served) -> None:
    told = await submitted(served, graph("a"))
    answer = await cancel(served, told["flow_id"], cancellation_policy="cancel_flow_only")
    assert answer["cancellation_policy"] == "flow_only"


async def test_a_cancelled_flow_takes_no_edits(served: Served) -> None:
    told = await submitted(served, graph("a", "b"))
    flow_id, (a, b) = told["flow_id"], told["executions"].values()
    bad = {"reason": "x", "cancellation_policy": "sometimes"}
    assert await served.refused(f"POST /v1/flows/{flow_id}/cancel", bad) == (400, "invalid_input")
    await cancel(served, flow_id, wait=True)
    edge = {
        "edge_id": str(uuid4()),
        "upstream_execution_id": a,
        "downstream_execution_id": b,
        "expected_graph_revision": told["graph_revision"],
    }
    edits: list[tuple[str, dict[str, Any]]] = [
        (f"POST /v1/flows/{flow_id}/edges", edge),
        (f"POST /v1/flows/{flow_id}/replay", {}),
        (f"PUT /v1/flows/{flow_id}/members/{b}/edge-policy", {"kind": "all_of"}),
    ]
    for line, body in edits:
        assert await served.refused(line, body) == (409, "flow_already_terminal"), line


# ---- read


async def test_members_and_edges_come_in_pages(served: Served) -> None:
    told = await submitted(served, graph("a", "b", "c", arrows=("ab", "ac", "bc")))
    own = told["flow_id"]
    for what, total in (("members", 3), ("edges", 3)):
        seen: list[Any] = []
        cursor = ""
        while True:
            page = await served.done(f"GET /v1/flows/{own}/{what}?limit=2&cursor={cursor}")
            seen += page["items"]
            cursor = page.get("next_cursor", "")
            if not cursor:
                break
        assert len(seen) == total
    listed = await served.done(f"GET /v1/flows/{own}/members")
    assert {one["public_state"] for one in listed["items"]} == {"waiting", "waiting_children"}
    for bad in ("limit=-1", "cursor=x", "direction=up", "surprise=1"):
        line = f"GET /v1/flows/{own}/edges?{bad}"
        assert (await served.refused(line))[0] == 400, bad


async def test_flows_are_found_across_partitions(served: Served) -> None:
    made = []
    for number in range(4):
        body = graph("a", namespace="other" if number == 3 else "default")
        body["flow_kind"] = f"kind{number % 2}"
        made.append((await submitted(served, body))["flow_id"])
    await cancel(served, made[0], wait=True)
    await served.done(f"PUT /v1/flows/{made[1]}/tags", {"tags": {"app.team": "red"}})
    by = {
        "": set(made),
        "namespace=other": {made[3]},
        "kind=kind0": {made[0], made[2]},
        "state=cancelled": {made[0]},
        "state=cancelled&state=open": set(made),
        "tag=app.team=red": {made[1]},
        "tag=app.team=blue": set(),
        "created_before=5": set(),
    }
    for query, expected in by.items():
        page = await served.done(f"GET /v1/flows/search?{query}")
        assert {one["flow_id"] for one in page["items"]} == expected, query
    assert (await served.refused("GET /v1/flows"))[0] == 405
    page = await served.done("GET /v1/flows/search?order=created_asc&limit=1")
    (first,) = page["items"]
    assert set(first) == {
        "flow_id",
        "flow_kind",
        "namespace",
        "public_flow_state",
        "total_members",
        "created_at",
        "tags",
    }
    assert page["next_cursor"]
    for bad in ("state=done", "tag=x", "limit=0", "limit=1001", "cursor=x", "order=up"):
        assert (await served.refused(f"GET /v1/flows/search?{bad}"))[0] == 400, bad
    other = f"GET /v1/flows/search?order=created_desc&cursor={page['next_cursor']}"
    assert await served.refused(other) == (400, "invalid_input")


async def test_flows_of_a_partition(served: Served) -> None:
    told = await submitted(served, graph("a"))
    home = next(iter(told["executions"].values())).partition("}")[0].removeprefix("{fp:")
    page = await served.done(f"GET /v1/partitions/{home}/flows")
    (flow,) = page["items"]
    assert (flow["flow_id"], flow["status"]) == (told["flow_id"], "active")
    assert "next_cursor" not in page
    assert (await served.done(f"GET /v1/partitions/{home}/flows?limit=0"))["items"] == []
    for bad in ("70000/flows", "x/flows", f"{home}/flows?kind=x", f"{home}/flows?cursor=x"):
        assert await served.refused(f"GET /v1/partitions/{bad}") == (400, "invalid_input"), bad


# ---- replay


async def test_a_failed_branch_runs_again(served: Served) -> None:
    told = await submitted(served, graph("a", "b", arrows=("ab",)))
    await end(served, fail={"reason": "broken", "category": "permanent"})
    line = f"POST /v1/flows/{told['flow_id']}/replay"
    answer = await served.done(line, {"reason": "again", "execution_ids": [EXECUTION]})
    (stranger,) = answer["items"]
    assert stranger["error"]["kind"] in ("execution_not_found", "execution_not_in_flow")
    answer = await served.done(line)
    assert (answer["outcome"], answer["flow_id"]) == ("replayed", told["flow_id"])
    assert answer["items"] == [
        {"execution_id": told["executions"]["a"], "public_state": "waiting"},
        {"execution_id": told["executions"]["b"], "public_state": "waiting_children"},
    ]
    assert await end(served, complete={}) == told["executions"]["a"]
    assert await end(served, complete={}) == told["executions"]["b"]


# ---- namespaces


async def test_a_token_keeps_to_its_namespaces(serve: Serve) -> None:
    served = await serve(
        tokens=(
            token("all", "admin"),
            token("mine", "submit", "read", "worker", namespaces=frozenset({"mine"})),
        )
    )
    served.headers = bearer("all")
    theirs = await submitted(served, graph("a", "b"))
    served.headers = bearer("mine")
    mine = await submitted(served, graph("a", namespace="mine"))
    own, (a, _) = theirs["flow_id"], theirs["executions"].values()
    edge = {
        "edge_id": str(uuid4()),
        "upstream_execution_id": a,
        "downstream_execution_id": a,
        "expected_graph_revision": 1,
    }
    lines: list[tuple[str, Any]] = [
        (f"POST /v1/flows/{own}/members", {"execution_id": a}),
        (f"POST /v1/flows/{mine['flow_id']}/members", {"execution_id": a}),
        (f"POST /v1/flows/{own}/edges", edge),
        (
            f"POST /v1/flows/{own}/edges/apply",
            {"edge_id": str(uuid4()), "downstream_execution_id": a},
        ),
        (f"PUT /v1/flows/{own}/members/{a}/edge-policy", {"kind": "all_of"}),
        (f"PUT /v1/flows/{own}/tags", {"tags": {"app.a": "b"}}),
        (f"POST /v1/flows/{own}/cancel", {"reason": "x", "cancellation_policy": "cancel_all"}),
        (f"POST /v1/flows/{own}/replay", {}),
        (f"GET /v1/flows/{own}", None),
        (f"GET /v1/flows/{own}/members", None),
        (f"GET /v1/flows/{own}/edges", None),
    ]
    for line, body in lines:
        status, kind = await served.refused(line, body)
        assert (status, kind) in ((404, "flow_not_found"), (404, "execution_not_found")), line
    elsewhere: list[tuple[str, Any]] = [
        ("POST /v1/flows:submit", graph("a")),
        ("POST /v1/flows", {"flow_kind": "x"}),
        ("GET /v1/flows/search?namespace=default", None),
    ]
    for line, body in elsewhere:
        assert await served.refused(line, body) == (403, "forbidden"), line
    taken: list[tuple[str, Any]] = [
        ("POST /v1/flows:submit", graph("a", namespace="mine", flow_id=own)),
        ("POST /v1/flows", {"flow_kind": "x", "namespace": "mine", "flow_id": own}),
    ]
    for line, body in taken:
        assert await served.refused(line, body) == (409, "conflict"), line
    found = await served.done("GET /v1/flows/search")
    assert [one["flow_id"] for one in found["items"]] == [mine["flow_id"]]
    home = a.partition("}")[0].removeprefix("{fp:")
    listed = await served.done(f"GET /v1/partitions/{home}/flows")
    assert own not in [one["flow_id"] for one in listed["items"]]
    absent = f"{a.partition('}')[0]}}}:{uuid4()}"
    line = f"POST /v1/flows/{mine['flow_id']}/replay"
    replayed = await served.done(line, {"execution_ids": [a, absent]})
    assert [one["error"] for one in replayed["items"]] == [
        {"error": f"execution_not_found: {one}", "kind": "execution_not_found", "retryable": False}
        for one in (a, absent)
    ]
