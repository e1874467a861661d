"""`python -m examples` runs what is chosen and says by its end how that went."""

import pytest

from examples import orders, worker_runtime
from examples.__main__ import chosen, main
from tests.examples.test_outcomes import EXAMPLES, name_of


def test_every_example_is_chosen_and_tested() -> None:
    assert chosen() == sorted(name_of(one) for one in (*EXAMPLES, orders))


def test_an_example_that_needs_another_store_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FF_EXAMPLES_ONLY", "orders")
    assert main(["memory://"]) == 2
    assert "left out: orders are kept in Postgres" in capsys.readouterr().out


def test_the_end_tells_how_it_went(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FF_EXAMPLES_ONLY", "worker_runtime")
    assert main(["memory://"]) == 0
    assert "1 of 1" in capsys.readouterr().out

    async def fail(url: str) -> None:
        raise AssertionError(url)

    monkeypatch.setattr(worker_runtime, "main", fail)
    assert main(["memory://"]) == 1

    async def miss(url: str) -> None:
        raise ModuleNotFoundError(name=url)

    monkeypatch.setattr(worker_runtime, "main", miss)
    assert main(["memory://"]) == 2
    monkeypatch.setenv("FF_EXAMPLES_ONLY", "nothing_like_that")
    with pytest.raises(SystemExit, match="2"):
        main([])
