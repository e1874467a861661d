"""Who may call what: every declared route with every scope."""

import pytest

from flowfabric.config import Settings
from flowfabric.core.scopes import SCOPES, Scope, granted
from flowfabric.server.route import Route
from flowfabric.server.routes import ROUTES
from tests.server.conftest import Serve
from tests.server.samples import path_of
from tests.server.stores import in_memory
from tests.server.tokens import bearer, token

READ, SUBMIT, WORKER, ADMIN = "read", "submit", "worker", "admin"
APPROVE, METRICS = "approve", "metrics"
# The agreed table, by noun: every route that needs a scope, and the scopes of which one is enough.
AGREED = {
    (SUBMIT, WORKER): "submit submit_many create_flow add_member",
    (READ, WORKER): (
        "describe_execution state get_result get_input upstreams journal"
        " resume_signals read_stream tail_stream read_summary"
    ),
    (READ,): (
        "attempts history list_executions list_suspended list_lane search count"
        " explain list_pending_waitpoints follow_stream read_events list_workers"
        " list_flows search_flows describe_flow list_members list_edges describe_budget list_lanes"
        " lane_queues list_expired_leases describe_schedule list_schedules list_tasks"
        " list_budgets describe_quota list_quotas"
    ),
    (SUBMIT,): (
        "cancel replay set_execution_tags signal submit_graph stage_edge apply_edge"
        " signal_by_name set_edge_group_policy set_flow_tags cancel_flow replay_flow"
        " put_schedule delete_schedule pause_schedule resume_schedule trigger_schedule"
        " backfill_schedule"
    ),
    (ADMIN,): (
        "hold release set_priority resume revoke_lease reclaim waitpoint_token"
        " create_budget reset_budget create_quota set_lane rotate_waitpoint_hmac_secret"
        " create_token list_tokens revoke_token delete_task change_budget change_quota"
    ),
    (WORKER,): (
        "children_flow cancel_children read_mailbox"
        " register_worker heartbeat leave report_gone claim claim_grant claim_granted renew finish"
        " suspend create_waitpoint append_frames append_journal report_usages report_progress watch"
        " report_usage reserve commit_reservation cancel_reservation register_tasks"
    ),
    (APPROVE,): "approve",
    (METRICS,): "metrics",
    (): "describe partitions openapi docs",
}
OPEN = {"healthz", "readyz"}

GUARDED = [route for route in ROUTES if route.scopes is not None]


@pytest.fixture
def settings() -> Settings:
    return in_memory()


def _label(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_the_declared_scopes_are_the_agreed_ones() -> None:
    agreed = {name: frozenset(scopes) for scopes, line in AGREED.items() for name in line.split()}
    declared = {route.name: route.scopes for route in ROUTES}
    assert {name for name, scopes in declared.items() if scopes is None} == OPEN
    assert {name: one for name, one in declared.items() if one is not None} == agreed


@pytest.mark.parametrize("route", GUARDED, ids=_label)
async def test_a_scope_opens_exactly_its_routes(route: Route, serve: Serve) -> None:
    served = await serve(tokens=tuple(token(scope, scope) for scope in sorted(SCOPES)))
    for scope in sorted(SCOPES):
        answer = await served.call(f"{route.method} {path_of(route)}", headers=bearer(scope))
        assert route.scopes is not None
        allowed = not route.scopes or scope in route.scopes or scope == "admin"
        if allowed:
            assert answer.status_code not in (401, 403), (scope, answer.text)
        else:
            assert answer.status_code == 403
            assert answer.json()["kind"] == "forbidden"
            assert all(one in answer.json()["error"] for one in route.scopes)


@pytest.mark.parametrize("route", GUARDED, ids=_label)
async def test_without_its_token_nobody_gets_in(route: Route, serve: Serve) -> None:
    served = await serve(tokens=(token("right", "admin"),))
    wrong: list[dict[str, str]] = [
        {},
        bearer("wrong"),
        bearer(""),
        {"Authorization": "right"},
        {"Authorization": "bearer right"},
        {"Authorization": "Bearer  right"},
        {"Authorization": "Basic right"},
    ]
    for headers in wrong:
        answer = await served.call(f"{route.method} {path_of(route)}", headers=headers)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["kind"] == "unauthorized"


async def test_unknown_routes_are_hidden_too(serve: Serve) -> None:
    served = await serve(tokens=(token("right", "read"),))
    assert (await served.call("GET /v1/nothing")).status_code == 401
    assert (await served.call("GET /v1/nothing", headers=bearer("right"))).status_code == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_health_and_opened_metrics_need_no_token(path: str, serve: Serve) -> None:
    served = await serve(tokens=(token("right", "read"),), metrics_open=True)
    assert (await served.call(f"GET {path}")).status_code == 200
    assert (await served.call(f"POST {path}")).status_code == 405


async def test_metrics_are_shown_to_their_scope_and_to_admins_of_all_namespaces(
    serve: Serve,
) -> None:
    alpha = frozenset({"alpha"})
    served = await serve(
        tokens=(
            token("metrics", "metrics"),
            token("read", "read"),
            token("admin", "admin"),
            token("limited", "admin", namespaces=alpha),
            token("both", "admin", "metrics", namespaces=alpha),
        )
    )
    assert await served.refused("GET /metrics") == (401, "unauthorized")
    for name, status in {
        "metrics": 200,
        "read": 403,
        "admin": 200,
        "limited": 403,
        "both": 200,
    }.items():
        answer = await served.call("GET /metrics", headers=bearer(name))
        assert answer.status_code == status, name


async def test_without_tokens_everything_is_open_but_the_reading_of_tokens(serve: Serve) -> None:
    served = await serve()
    reading = next(route for route in ROUTES if route.name == "waitpoint_token")
    assert await served.refused(f"GET {path_of(reading)}") == (403, "forbidden")
    for route in GUARDED:
        if route is not reading:
            answer = await served.call(f"{route.method} {path_of(route)}")
            assert answer.status_code not in (401, 403), _label(route)


def test_admin_has_every_scope_but_figures_of_the_store_only_without_namespaces() -> None:
    admin = frozenset[Scope]({"admin"})
    assert granted(admin, None) == SCOPES
    assert granted(admin, {"alpha"}) == SCOPES - {"metrics"}
    assert granted(frozenset({"read"}), None) == {"read"}
