"""Errors cross the wire as what they are."""

import pytest

from flowfabric.errors import (
    ERRORS,
    FlowFabricError,
    InvalidBody,
    InvalidInput,
    InvalidParameter,
    NotFound,
    StoreTimeout,
    TimedOut,
)
from flowfabric.operations.answers import error_body, error_of

SAID_OTHERWISE = {"bug", "invalid_json", "payload_too_large"}


@pytest.mark.parametrize("code", sorted(set(ERRORS) - SAID_OTHERWISE))
def test_an_error_is_the_same_on_the_other_side(code: str) -> None:
    fault = ERRORS[code]("why it was", number=7)
    found = error_of(error_body(fault))
    assert type(found) is type(fault)
    if fault.is_for_callers():
        assert found.detail in (fault.detail, fault.text())
    else:
        assert "why it was" not in found.detail
    assert found.details == {"number": 7}
    assert found.retryable is fault.retryable


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (TimedOut("slow"), TimedOut),
        (InvalidParameter("limit: too much"), InvalidInput),
        (InvalidBody("lane_id: missing"), InvalidInput),
        (NotFound("no such route"), NotFound),
    ],
)
def test_variants_become_what_programs_catch(
    fault: FlowFabricError, kind: type[FlowFabricError]
) -> None:
    found = error_of(error_body(fault))
    assert type(found) is kind
    assert found.detail.endswith(fault.detail)


def test_a_timeout_of_the_store_is_one_on_the_other_side_too() -> None:
    assert type(error_of(error_body(StoreTimeout("slow")))) is StoreTimeout


def test_a_body_that_was_too_large_tells_the_limit() -> None:
    told = ERRORS["payload_too_large"](limit_bytes=10, route="/v1/x")
    assert error_of(error_body(told)).details == {"limit_bytes": 10, "route": "/v1/x"}
