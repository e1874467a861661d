"""The exception tree: the catalogue of codes, what an error prints, and what it answers."""

import copy
import pickle
import re
from typing import get_args

import pytest

from flowfabric import errors
from flowfabric.errors import ERRORS, FlowFabricError

# code, family, category, HTTP status: the whole catalogue, without the variants below.
CATALOGUE = """
stale_lease                            StateError         terminal       409
lease_expired                          StateError         terminal       409
lease_revoked                          StateError         terminal       409
execution_not_active                   ContentionError    terminal       409
no_active_lease                        ContentionError    informational  409
fence_required                         ValidationError    terminal       400
partial_fence_triple                   ValidationError    terminal       400
invalid_lease_for_suspend              ValidationError    terminal       400
use_claim_resumed_execution            ContentionError    retryable      409
not_a_resumed_execution                ContentionError    retryable      409
execution_not_leaseable                ContentionError    retryable      409
invalid_claim_grant                    ContentionError    retryable      409
claim_grant_expired                    ContentionError    retryable      409
execution_not_eligible                 ContentionError    informational  409
grant_already_exists                   StateError         informational  409
execution_not_reclaimable              ContentionError    informational  409
capability_mismatch                    ValidationError    retryable      409
invalid_capabilities                   ValidationError    terminal       400
invalid_policy_json                    ValidationError    terminal       400
lane_not_accepting                     StateError         terminal       409
invalid_blocking_reason                ValidationError    terminal       400
not_runnable                           StateError         terminal       409
terminal                               StateError         terminal       409
not_blocked_by_deps                    StateError         informational  409
deps_not_satisfied                     StateError         informational  409
retry_exhausted                        ContentionError    retryable      503
execution_not_found                    NotFoundError      terminal       404
execution_not_terminal                 StateError         terminal       409
max_replays_exhausted                  StateError         terminal       409
max_retries_exhausted                  StateError         terminal       409
execution_not_suspended                StateError         informational  409
already_suspended                      StateError         informational  409
already_satisfied                      StateError         informational  -
waitpoint_closed                       StateError         informational  409
waitpoint_not_found                    ContentionError    retryable      409
target_not_signalable                  StateError         terminal       409
payload_too_large                      ValidationError    terminal       413
signal_limit_exceeded                  ValidationError    terminal       400
invalid_token                          ValidationError    terminal       400
missing_token                          ValidationError    terminal       400
token_expired                          ValidationError    terminal       400
waitpoint_not_token_bound              ValidationError    terminal       400
hmac_secret_not_initialized            BugError           terminal       500
invalid_secret                         BugError           bug            500
waitpoint_not_pending                  StateError         informational  409
pending_waitpoint_expired              StateError         informational  409
invalid_waitpoint_for_execution        ValidationError    terminal       400
waitpoint_already_exists               ConflictError      informational  409
waitpoint_not_open                     StateError         informational  409
additional_waitpoint_binding_malformed ValidationError    terminal       400
use_pending_with_extras_unsupported    ValidationError    terminal       400
invalid_kid                            ValidationError    terminal       400
invalid_secret_hex                     ValidationError    terminal       400
invalid_grace_ms                       ValidationError    terminal       400
rotation_conflict                      ConflictError      terminal       409
stream_closed                          StateError         terminal       409
stale_owner_cannot_append              StateError         terminal       409
retention_limit_exceeded               ValidationError    terminal       413
stream_disconnected                    SubscriptionError  terminal       -
stream_backpressure                    SubscriptionError  informational  -
flow_not_found                         NotFoundError      terminal       404
flow_already_terminal                  StateError         terminal       409
execution_already_in_flow              ConflictError      terminal       409
execution_not_in_flow                  StateError         terminal       409
invalid_dependency                     ValidationError    terminal       400
stale_graph_revision                   ContentionError    retryable      409
cycle_detected                         ConflictError      terminal       409
self_referencing_edge                  ConflictError      terminal       409
graph_too_large_for_cycle_check        ValidationError    terminal       400
dependency_already_exists              ConflictError      terminal       409
budget_exceeded                        StateError         cooperative    -
budget_not_found                       NotFoundError      terminal       404
quota_not_found                        NotFoundError      terminal       404
invalid_quota_spec                     ValidationError    terminal       400
invalid_input                          ValidationError    terminal       400
invalid_json                           ValidationError    terminal       400
invalid_tag_key                        ValidationError    terminal       400
not_found                              NotFoundError      terminal       404
method_not_allowed                     ValidationError    terminal       405
conflict                               ConflictError      terminal       409
unauthorized                           ValidationError    terminal       401
forbidden                              ValidationError    terminal       403
nondeterminism                         ConflictError      terminal       409
corruption                             ValidationError    terminal       500
invariant_violation                    BugError           bug            500
bug                                    BugError           bug            500
handle_from_other_backend              ValidationError    terminal       400
partition_mismatch                     ConflictError      terminal       409
unavailable                            ServiceError       terminal       503
resource_exhausted                     ServiceError       retryable      429
timeout                                ServiceError       terminal       504
transport                              TransportError     retryable      503
cluster                                TransportError     retryable      503
busy_loading                           TransportError     retryable      503
auth                                   TransportError     terminal       500
script_not_loaded                      TransportError     terminal       500
protocol                               TransportError     terminal       500
other                                  TransportError     terminal       500
worker_at_capacity                     LocalError         retryable      -
malformed_response                     LocalError         terminal       -
http                                   LocalError         terminal       -
api                                    LocalError         terminal       -
config                                 LocalError         terminal       -
execution_failed                       LocalError         terminal       -
execution_cancelled                    LocalError         terminal       -
execution_expired                      LocalError         terminal       -
execution_skipped                      LocalError         terminal       -
result_timeout                         LocalError         retryable      -
unsupported_store                      LocalError         terminal       -
step_failed                            LocalError         terminal       -
call_timeout                           LocalError         terminal       -
step_timeout                           LocalError         terminal       -
non_retryable                          LocalError         terminal       -
"""

# Same code, another status: class, the class it varies, status.
VARIANTS = [
    (errors.NoLeaseToRevoke, errors.NoActiveLease, 404),
    (errors.NoWaitpointToApprove, errors.WaitpointNotFound, 404),
    (errors.InvalidContentType, errors.InvalidJson, 415),
    (errors.InvalidBody, errors.InvalidJson, 422),
    (errors.InvalidParameter, errors.InvalidInput, 400),
]

# Same code, but these cases may be tried again.
MAY_BE_TRIED_AGAIN = [
    (errors.Unreachable, errors.HttpError),
    (errors.TryLater, errors.ApiError),
]

NAMED_OTHERWISE = {
    "terminal": "DownstreamTerminal",
    "timeout": "TimedOut",
    "transport": "TransportFault",
    "cluster": "ClusterFault",
    "auth": "AuthFault",
    "protocol": "ProtocolFault",
    "other": "OtherFault",
    "config": "ConfigError",
    "http": "HttpError",
    "api": "ApiError",
}

ROWS = [line.split() for line in CATALOGUE.split("\n") if line]


def everything(root: type[FlowFabricError] = FlowFabricError) -> set[type[FlowFabricError]]:
    """The whole tree that the package defines, families and variants included."""
    found = {root}.union(*(everything(child) for child in root.__subclasses__()))
    return {each for each in found if each.__module__.startswith("flowfabric.errors")}


LEAVES = sorted((each for each in everything() if each.code), key=lambda each: each.__name__)
FAMILIES = sorted(everything().difference(LEAVES), key=lambda each: each.__name__)


@pytest.mark.parametrize(("code", "family", "category", "status"), ROWS)
def test_a_code_has_its_family_category_and_status(
    code: str, family: str, category: str, status: str
) -> None:
    leaf = ERRORS[code]
    assert leaf.code == code
    assert leaf.__bases__[0] is getattr(errors, family)
    assert leaf.category == category
    assert leaf.status == (None if status == "-" else int(status))
    assert leaf.retryable is (category == "retryable")


def test_the_catalogue_is_complete_and_has_nothing_else() -> None:
    assert sorted(ERRORS) == sorted(code for code, *_ in ROWS)
    assert len(ROWS) == len(ERRORS)


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_a_class_is_named_after_its_code(code: str) -> None:
    camel = "".join(word.capitalize() for word in code.split("_"))
    assert ERRORS[code].__name__ == NAMED_OTHERWISE.get(code, camel)


@pytest.mark.parametrize(("variant", "origin", "status"), VARIANTS)
def test_a_variant_differs_from_its_origin_in_the_status_alone(
    variant: type[FlowFabricError], origin: type[FlowFabricError], status: int
) -> None:
    assert variant.__bases__ == (origin,)
    assert (variant.code, variant.category, variant.retryable) == (
        origin.code,
        origin.category,
        origin.retryable,
    )
    assert variant.status == status
    assert ERRORS[variant.code] is origin


@pytest.mark.parametrize(("variant", "origin"), MAY_BE_TRIED_AGAIN)
def test_some_cases_of_a_code_may_be_tried_again(
    variant: type[FlowFabricError], origin: type[FlowFabricError]
) -> None:
    assert variant.__bases__ == (origin,)
    assert (variant.code, variant.status) == (origin.code, origin.status)
    assert variant.retryable
    assert not origin.retryable
    assert ERRORS[variant.code] is origin


def test_a_timeout_of_the_store_is_not_one_of_the_operation() -> None:
    assert ERRORS["timeout"] is errors.TimedOut
    assert errors.StoreTimeout.code == "timeout"
    assert errors.StoreTimeout.__bases__ == (errors.TransportError,)
    assert errors.StoreTimeout.status == 503
    assert errors.StoreTimeout.retryable
    assert not errors.TimedOut.retryable


def test_every_leaf_is_catalogued_a_variant_or_the_second_timeout() -> None:
    variants = {variant for variant, *_ in (*VARIANTS, *MAY_BE_TRIED_AGAIN)}
    assert set(LEAVES) == {*ERRORS.values(), *variants, errors.StoreTimeout}


def test_the_public_names_are_the_tree() -> None:
    public = {one for one in vars(errors).values() if isinstance(one, type)}
    assert {one for one in public if issubclass(one, FlowFabricError)} == set(everything())
    assert {leaf.category for leaf in ERRORS.values()} <= set(get_args(errors.Category))


def test_the_drawing_shows_every_class_under_its_family() -> None:
    assert errors.__doc__ is not None
    drawn: dict[str, list[str]] = {}
    family = ""
    for line in re.findall(r"^    [├│└ ].*$", errors.__doc__, re.MULTILINE):
        words = re.findall(r"\w+", line)
        if "──" in line:
            (family,) = words
        drawn.setdefault(family, []).extend(words if "──" not in line else [])
    below = {
        each.__name__: sorted(leaf.__name__ for leaf in LEAVES if issubclass(leaf, each))
        for each in FAMILIES
        if each is not FlowFabricError
    }
    assert {name: sorted(leaves) for name, leaves in drawn.items()} == below


@pytest.mark.parametrize("each", LEAVES + FAMILIES)
def test_the_docstring_is_a_message_of_its_own(each: type[FlowFabricError]) -> None:
    assert each.__doc__
    assert each.__doc__.strip()[0].isupper()
    assert sum(other.__doc__ == each.__doc__ for other in LEAVES + FAMILIES) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_cannot_be_raised(family: type[FlowFabricError]) -> None:
    with pytest.raises(TypeError, match="is a family"):
        family("too vague")


@pytest.mark.parametrize("leaf", LEAVES)
def test_an_error_survives_pickling_and_copying(leaf: type[FlowFabricError]) -> None:
    error = leaf("why", epoch=3, name="x")
    error.add_note("seen while finishing")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is leaf
        assert (again.detail, again.details) == ("why", {"epoch": 3, "name": "x"})
        assert (str(again), repr(again)) == (str(error), repr(error))
        assert again.__notes__ == ["seen while finishing"]


def test_the_text_is_the_code_and_the_detail() -> None:
    assert str(errors.InvalidTagKey("App.x")) == "invalid_tag_key: App.x"
    assert str(errors.InvalidTagKey()) == "invalid_tag_key"
    assert str(errors.DownstreamTerminal()) == "terminal"


def test_the_repr_shows_what_was_given() -> None:
    assert repr(errors.StaleLease()) == "StaleLease()"
    assert repr(errors.StaleLease("epoch 2")) == "StaleLease('epoch 2')"
    error = errors.ExecutionNotActive(lifecycle_phase="terminal", current_lease_epoch=4)
    assert repr(error) == "ExecutionNotActive(lifecycle_phase='terminal', current_lease_epoch=4)"


@pytest.mark.parametrize("leaf", [leaf for leaf in LEAVES if leaf is not errors.Bug])
def test_the_body_has_text_kind_and_retryability(leaf: type[FlowFabricError]) -> None:
    body = leaf("why").body()
    assert (body.pop("kind"), body.pop("retryable")) == (leaf.code, leaf.retryable)
    is_of_the_store = issubclass(leaf, errors.TransportError | errors.Corruption)
    assert list(body) == ["error"]
    # The detail of a fault of the store may name hosts and files.
    assert ("why" in str(body["error"])) is not is_of_the_store
    if not is_of_the_store:
        assert body["error"] == leaf("why").text()


def test_the_body_carries_details_when_there_are_any() -> None:
    details: dict[str, object] = {
        "terminal_outcome": "success",
        "current_lease_epoch": 2,
        "lifecycle_phase": "terminal",
        "current_attempt_id": "a",
    }
    assert errors.ExecutionNotActive(**details).body() == {
        "error": "execution_not_active",
        "kind": "execution_not_active",
        "retryable": False,
        "details": details,
    }


def test_a_body_that_is_too_large_answers_limit_and_route_as_members() -> None:
    assert errors.PayloadTooLarge(limit_bytes=65536, route="/v1/lanes/{lane}").body() == {
        "error": "payload_too_large",
        "kind": "payload_too_large",
        "retryable": False,
        "limit_bytes": 65536,
        "route": "/v1/lanes/{lane}",
    }


def test_a_bug_keeps_its_internals_for_the_log() -> None:
    bug = errors.Bug("no move complete: waiting -> completed", rule="complete")
    assert bug.body() == {"error": "bug", "kind": "bug", "retryable": False}
    assert str(bug) == "bug: no move complete: waiting -> completed"


def test_the_catalogue_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        ERRORS["mine"] = errors.Bug  # type: ignore[index]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.StaleLease("epoch 2"), "stale_lease: epoch 2"),
        (errors.InvalidBody("lane_id: missing"), "invalid JSON: lane_id: missing"),
        (errors.InvalidParameter("limit: expected int"), "limit: expected int"),
        (errors.NotFound("execution result not found: x"), "execution result not found: x"),
        (errors.NotFound(), "not_found"),
        (errors.Unavailable("backend op unavailable: tail"), "backend op unavailable: tail"),
        (
            errors.TransportFault("10.0.0.5:6379 lost"),
            "backend: The connection to the store failed or broke: try again.",
        ),
        (
            errors.TransportFault("10.0.0.5:6379 lost", context="claim"),
            "backend (claim): The connection to the store failed or broke: try again.",
        ),
        (
            errors.Corruption("/var/lib/x.db: malformed"),
            f"corruption: {errors.Corruption.__doc__}",
        ),
    ],
)
def test_an_answer_says_it_with_or_without_the_code(error: FlowFabricError, text: str) -> None:
    assert error.body()["error"] == text
    assert error.body()["kind"] == error.code
