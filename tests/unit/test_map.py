"""The pages a newcomer reads first: what they name exists, and they name every package."""

import re
from pathlib import Path
from typing import Final

import pytest

from flowfabric.backend.valkey.keys import KINDS
from flowfabric.backend.valkey.library import FILES

ROOT: Final = Path(__file__).parents[2]
SOURCE: Final = ROOT / "src" / "flowfabric"
DECISIONS: Final = ROOT / "docs" / "adr"
GLOSSARY: Final = ROOT / "docs" / "reference" / "glossary.md"
FUNCTIONS: Final = ROOT / "docs" / "reference" / "valkey-functions.md"
MAPS: Final = (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
PAGES: Final = (
    *MAPS,
    GLOSSARY,
    FUNCTIONS,
    *(ROOT / "docs" / "explanation").glob("*.md"),
    *DECISIONS.glob("*.md"),
)
# Between backticks a file (`core/retry.py`, `keys.py`) or a directory (`tests/golden`).
_FILE: Final = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.(?:py|lua))[`:]")
_DIRECTORY: Final = re.compile(r"`((?:[a-z_0-9]+/)+[a-z_0-9]*)`")
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#]+)")
# What pages name paths from. A page about one package names the files of that package alone.
_PLACES: Final = (ROOT, SOURCE, SOURCE / "server", SOURCE / "backend" / "valkey")
# The program that the README has its reader write.
_EXAMPLE: Final = "first.py"


def packages() -> set[str]:
    found = {one.parent for one in SOURCE.glob("**/__init__.py")} - {SOURCE}
    return {one.relative_to(SOURCE).as_posix() for one in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_files_that_exist(page: Path) -> None:
    text = page.read_text()
    named = {*_FILE.findall(text), *_DIRECTORY.findall(text)} - {_EXAMPLE}
    assert {one for one in named if not any((at / one).exists() for at in _PLACES)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_to_a_file(page: Path) -> None:
    links = _LINK.findall(page.read_text())
    assert [one for one in links if not (page.parent / one).exists()] == []


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.name)
def test_the_map_shows_every_package(page: Path) -> None:
    words = set(re.findall(r"[a-z_]+", page.read_text()))
    wanted = {one.removeprefix("backend/") for one in packages()} | {"app", "lua"}
    assert {one for one in wanted if "/" not in one} - words == set()


def test_a_word_of_the_glossary_has_one_meaning() -> None:
    words = re.findall(r"^\| ([a-z -]+) \| .+\. \|", GLOSSARY.read_text(), re.MULTILINE)
    assert len(words) > 80
    assert len(words) == len(set(words))


def test_the_table_of_keys_has_every_kind_of_key() -> None:
    row = re.compile(r"^\| `(\w+)` \| `(\w+)` \| [a-z ]+ \| .+ \|$", re.MULTILINE)
    assert {name: letters for letters, name in row.findall(FUNCTIONS.read_text())} == KINDS


def test_the_library_has_every_lua_file() -> None:
    files = {one.stem for one in (SOURCE / "backend" / "valkey" / "lua").glob("*.lua")}
    assert files == set(FILES)


def test_every_decision_is_listed_by_its_title() -> None:
    row = re.compile(r"^\| \[(\d{4})\]\(([^)]+)\) \| (.+) \|$", re.MULTILINE)
    listed = {page: f"# {n}. {title}" for n, page, title in row.findall(_read("README.md"))}
    assert listed == {one.name: _read(one.name).partition("\n")[0] for one in DECISIONS.glob("0*")}


def _read(name: str) -> str:
    return (DECISIONS / name).read_text()


def test_decisions_that_amend_each_other_link_in_both_directions() -> None:
    """What amends a page, or is amended by it, is named above its context."""
    pages = {one.name: one.read_text() for one in DECISIONS.glob("0*.md")}
    amends = {
        (name, other)
        for name, text in pages.items()
        for other in _LINK.findall(text.partition("## Context")[0])
    }
    assert {(other, name) for name, other in amends} == amends
