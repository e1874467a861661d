"""The page of defaults and limits is what the code goes by."""

from tests.limits_page import PAGE, length, size, text


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == text(), "run make pages"


def test_values_are_exact_and_readable() -> None:
    assert [size(one) for one in (128, 1_024, 65_536, 2**20, 3 * 2**20 + 1)] == [
        "128 bytes",
        "1 KiB",
        "64 KiB",
        "1 MiB",
        "3,145,729 bytes",
    ]
    found = [length(one) for one in (100, 30_000, 60_000, 3_600_000, 86_400_000, 7 * 86_400_000)]
    assert found == ["100 ms", "30 s", "1 min", "1 h", "24 h", "7 days"]
