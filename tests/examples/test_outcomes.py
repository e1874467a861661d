"""Every example runs on a store in this process and comes to what it tells."""

from collections.abc import Awaitable, Callable

import pytest

from examples import (
    agent,
    deploy_approval,
    external_callback,
    incident_remediation,
    media_pipeline,
    quick_start,
    race,
    retry_and_cancel,
    token_budget,
)

TOLD = {
    "agent": "a program: it works, agreed by ada; 3 thoughts, 10 tokens",
    "deploy_approval": "1.2.3 deployed, agreed by ada and bob",
    "external_callback": "1200 paid, receipt R-7",
    "incident_remediation": "db-1 restarted by second",
    "media_pipeline": "render on graphics, listen on audio",
    "quick_start": "heard of every end, cancelled: never",
    "race": "slow: cancelled",
    "retry_and_cancel": "attempts: initial, retry, retry",
    "token_budget": "2 answered, 2 too dear, 80 of 100 spent",
}
EXAMPLES = (
    agent,
    deploy_approval,
    external_callback,
    incident_remediation,
    media_pipeline,
    quick_start,
    race,
    retry_and_cancel,
    token_budget,
)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: one.__name__.rpartition(".")[2])
async def test_the_example_comes_to_its_outcome(
    example: object, capsys: pytest.CaptureFixture[str]
) -> None:
    main: Callable[[], Awaitable[None]] = example.main  # type: ignore[attr-defined]
    name: str = example.__name__  # type: ignore[attr-defined]
    await main()
    assert TOLD[name.rpartition(".")[2]] in capsys.readouterr().out.splitlines()
