"""Credentials are compared in one place only, in a time that tells nothing."""

import ast
import hmac
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import flowfabric
from flowfabric.core.tokens import Secret, WaitpointToken, same_text

SOURCES = Path(flowfabric.__file__).parent
_WORDS = re.compile(
    r"(?:^|_)(?:token|secret|digest|hmac|signature|credential|raw)(?:s|_hex)?(?:$|_)"
)
_COMPARING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Lt, ast.LtE, ast.Gt, ast.GtE)

# The same words for things that are no credentials: digests that name the content of steps and
# graphs, the marks that distinct signals leave in a condition, a path as it came, ids of tokens.
HARMLESS = {
    ("backend/reference/flows.py", "found.digest != graph.flow.digest"),
    ("engine/flows/graphs.py", "stored.digest != chunk.flow.digest"),
    ("backend/reference/journal.py", "stored.digest != entry.digest"),
    ("engine/attempts/journals.py", "before.digest == entry.digest"),
    ("worker/session.py", "entry.digest != digest"),
    ("core/conditions.py", "token not in held"),
    ("server/http.py", "raw_path != _METRICS"),
    ("engine/api_tokens.py", "one.token_id > cursor"),
    ("engine/api_tokens.py", "one.token_id == token_id"),
}


def _names(node: ast.expr) -> Iterator[str]:
    """What a value is called, also behind a method that gives it in another form."""
    match node:
        case ast.Name(name):
            yield name
        case ast.Attribute(_, name):
            yield name
        case ast.Subscript(value):
            yield from _names(value)
        case ast.Call(ast.Attribute(value, method)):
            yield method
            yield from _names(value)


def _is_secret(node: ast.expr) -> bool:
    names = [name for name in _names(node) if not name.isupper() and not name.startswith("_LONG")]
    return "reveal" in names or any(_WORDS.search(name) for name in names)


def _suspects(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        for left, op, right in zip(
            (node.left, *node.comparators), node.ops, node.comparators, strict=False
        ):
            bare = isinstance(left, ast.Constant) or isinstance(right, ast.Constant)
            if isinstance(op, _COMPARING) and not bare and (_is_secret(left) or _is_secret(right)):
                yield ast.unparse(node)


def test_no_other_comparison_of_credentials_exists() -> None:
    found = {
        (str(path.relative_to(SOURCES)), suspect)
        for path in SOURCES.rglob("*.py")
        for suspect in _suspects(ast.parse(path.read_text()))
    }
    assert found <= HARMLESS


def test_one_place_uses_the_constant_time_comparison() -> None:
    users = [
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if "compare_digest" in path.read_text()
    ]
    assert users == ["core/tokens.py"]


@pytest.mark.parametrize(
    "line",
    [
        "token == other",
        "self.secret != given",
        "presented.reveal() == stored",
        "digest in known",
        "key.secret.lower() == mine",
        "new_secret_hex == old",
    ],
)
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert list(_suspects(ast.parse(line))) == [line]


def test_credentials_compare_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[bytes, bytes]] = []

    def refusing(one: bytes, other: bytes) -> bool:
        calls.append((one, other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", refusing)
    assert not same_text("a", "a")
    assert WaitpointToken("k:a") != WaitpointToken("k:a")
    assert Secret("a") != Secret("a")
    assert len(calls) == 3


def test_text_that_cannot_be_encoded_is_compared_all_the_same() -> None:
    assert not same_text("\ud800", "?")
    assert same_text("\ud800", "\ud800")
    assert same_text("é", "é")
