"""Nothing that a run lacks is passed over in silence."""

import re

import pytest


def test_a_skipped_test_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_some="""
        import pytest

        def test_passes():
            pass

        @pytest.mark.skip(reason="by a mark")
        def test_marked():
            pass

        def test_calls():
            pytest.skip("by a call")

        @pytest.mark.parametrize("one", [])
        def test_empty(one):
            pass

        @pytest.mark.xfail(strict=True)
        def test_expected():
            raise AssertionError
        """,
        test_module="import pytest; pytest.importorskip('no_such_module')",
    )
    plugins = ("tests.no_skips", "no:randomly", "no:cacheprovider", "no:asyncio", "no:xdist")
    words = [word for name in plugins for word in ("-p", name)]
    result = pytester.runpytest_inprocess(*words, "--continue-on-collection-errors")
    result.assert_outcomes(passed=1, failed=1, errors=3, xfailed=1)
    shown = result.stdout.str()
    for reason in ("by a mark", "by a call", "empty parameter set"):
        assert re.search(f"no test may be skipped: .*{reason}", shown)
    assert re.search("no module may be skipped: .*no_such_module", shown)
