"""Settings from the environment: names, second names, and every fault at once."""

from collections.abc import Mapping

import pytest

from flowfabric.config import Settings, settings_from
from flowfabric.errors import InvalidInput


def test_without_variables_the_defaults_hold() -> None:
    assert settings_from({}) == Settings()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 64),
        ({"FF_MAX_CONCURRENT_STREAM_OPS": "7"}, 7),
        ({"FF_MAX_CONCURRENT_TAIL": "8"}, 8),
        ({"FF_MAX_CONCURRENT_STREAM_OPS": "", "FF_MAX_CONCURRENT_TAIL": "8"}, 8),
        ({"FF_MAX_CONCURRENT_STREAM_OPS": "7", "FF_MAX_CONCURRENT_TAIL": "8"}, 7),
        ({"FF_MAX_CONCURRENT_STREAM_OPS": "7", "FF_MAX_CONCURRENT_TAIL": "many"}, 7),
    ],
)
def test_the_second_name_counts_when_the_first_is_unset(
    environment: Mapping[str, str], expected: int
) -> None:
    assert settings_from(environment).max_concurrent_stream_ops == expected


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", "4294967296", "٣"])
def test_a_pool_has_a_positive_size(text: str) -> None:
    with pytest.raises(InvalidInput, match="FF_MAX_CONCURRENT_STREAM_OPS"):
        settings_from({"FF_MAX_CONCURRENT_STREAM_OPS": text})
    with pytest.raises(InvalidInput, match="FF_MAX_CONCURRENT_TAIL"):
        settings_from({"FF_MAX_CONCURRENT_TAIL": text})


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(InvalidInput) as caught:
        settings_from({"FF_MAX_CONCURRENT_TAIL": "x", "FF_FLOW_PARTITIONS": "0"})
    assert "FF_MAX_CONCURRENT_TAIL" in caught.value.detail
    assert "FF_FLOW_PARTITIONS" in caught.value.detail
