"""What the Lua files take from Python, and that they have no copy of it."""

import re
from collections.abc import Iterator
from typing import Final

import pytest

from flowfabric.backend.valkey.library import FILES, constants, source
from flowfabric.backend.valkey.rendering import WORDS, lua, render
from flowfabric.backend.valkey.verifying import dumping
from flowfabric.core import settle

# Numbers a file has of its own, which no rule in Python knows: of its queries and its packing.
OWN_NUMBERS: Final = frozenset(
    {
        ("same_shape", "0xdc"),
        ("topics", "1000"),
        ("claim", "1e300"),
        ("create", "1000"),
        ("create", "3600000"),
        ("edges", "64"),
        ("edges", "1000"),
        ("edges", "2000"),
        ("gates", "1000"),
        ("hints", "32"),
        ("hints", "1000"),
        ("limits", "1000"),
        ("queues", "16"),
        ("queues", "1000"),
        ("prelude", "0.00002"),
        ("prelude", "1000"),
        ("prelude", "1e6"),
        ("record", "0x90"),
        ("record", "0x9f"),
        ("record", "0xdc"),
        ("record", "1000"),
        ("admit", "1000"),
        ("transition", "100"),
        ("views", "128"),
        ("views", "1000"),
        ("views", "10000"),
    }
)
# Words that mean something else there: an answer, a query, a field of the server's own.
OWN_WORDS: Final = frozenset(
    {
        ("budgets", "budget"),
        ("gates", "quota"),
        ("purge", "log"),
        ("spend", "reserved"),
    }
)
# A place in an array, a small count: what a reader sees through without a name.
_SMALL: Final = 12
_NUMBER: Final = re.compile(r"(?<![\w@.$'%])(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e\d+)?)(?!\w)")
_TEXT: Final = re.compile(r"'([^']*)'")
_REGISTERED: Final = re.compile(r"ff\.register\('\w+'")


def _lines(file: str) -> Iterator[str]:
    """The code of a file, without the names of its functions."""
    for line in source(file).splitlines():
        if not line.lstrip().startswith("--"):
            yield _REGISTERED.sub("", line)


def _value(number: str) -> float:
    return int(number, 16) if number.startswith("0x") else float(number)


def _shared_words() -> set[str]:
    known = {word for kind, words in WORDS.items() if kind != "field" for word in words.values()}
    return {word for word in known | {*map(str, constants().values())} if len(word) > 1}


@pytest.mark.parametrize("file", FILES)
def test_a_file_has_no_number_of_a_rule(file: str) -> None:
    code = "\n".join(_TEXT.sub("", line) for line in _lines(file))
    found = {(file, number) for number in _NUMBER.findall(code) if _value(number) > _SMALL}
    assert found <= OWN_NUMBERS, "write $module.NAME, or list it as the store's own"


@pytest.mark.parametrize("file", FILES)
def test_a_file_has_no_word_of_a_rule(file: str) -> None:
    texts = {text for line in _lines(file) for text in _TEXT.findall(line)}
    found = {(file, text) for text in texts & _shared_words()}
    assert found <= OWN_WORDS, "write $kind.word or $module.NAME"


def test_no_number_or_word_is_listed_in_vain() -> None:
    code = {file: "\n".join(_lines(file)) for file in FILES}
    numbers = {one for one in OWN_NUMBERS if one[1] not in code.get(one[0], "")}
    words = {one for one in OWN_WORDS if f"'{one[1]}'" not in code.get(one[0], "")}
    assert numbers | words == set()


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("$state.active", "'active'"),
        ("$settle.PAGE", lua(settle.PAGE)),
        ("$key.execution .. id", "'ff:x:' .. id"),
        ("r[@attempt_id]", "r[1]"),
    ],
)
def test_names_become_what_python_has(text: str, rendered: str) -> None:
    assert render(text) == rendered


@pytest.mark.parametrize("text", ["$state.gone", "$settle.GONE", "$nowhere.PAGE", "r[@gone]"])
def test_a_name_that_python_has_not_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text.removeprefix("r[").removesuffix("]"))):
        render(text)


def test_every_kind_of_key_is_dumped() -> None:
    prefixes = {begin.split(":")[1] for begin in WORDS["key"].values()}
    assert prefixes == set(dumping.KINDS)
