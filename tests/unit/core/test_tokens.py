"""Tokens: signed the same everywhere, refused in order, and never shown."""

import hashlib
import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.documents import Document
from flowfabric.core.suspensions import Waitpoint, read_waitpoint, write_document
from flowfabric.core.tokens import (
    Key,
    KeyRing,
    Secret,
    Signed,
    WaitpointToken,
    check_token,
    digest_of,
    mint,
    minted_again,
    read_ring,
)
from flowfabric.errors import (
    FlowFabricError,
    HmacSecretNotInitialized,
    InvalidSecret,
    InvalidToken,
    MissingToken,
    TokenExpired,
)

NOW = 1_713_100_900_000
SECRET = bytes(range(32)).hex()
OTHER_SECRET = "ab" * 32
SIGNED = Signed(
    "{fp:12}:2f6d0a4e-1b3c-4d5e-8f90-a1b2c3d4e5f6",
    "7b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d",
    1713100800150,
    "wpk:7b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d",
)
VECTOR = "k1:1955b0bc5f3ff9b92ae7fd1d0d41b12224ab64d5a69c283b260bd2e470199100"
RING = KeyRing(current_kid="k1", keys={"k1": Key(SECRET)})
GOOD = WaitpointToken(VECTOR)


def refusal(
    token: str, ring: KeyRing = RING, signed: Signed | None = SIGNED, now: int = NOW
) -> type[FlowFabricError] | None:
    try:
        check_token(ring, WaitpointToken(token), signed, now)
    except FlowFabricError as fault:
        if len(token) > 8 and token in str(fault) + repr(fault):
            raise AssertionError("the error shows the token") from None
        return type(fault)
    return None


def test_the_published_vector() -> None:
    assert mint(RING, SIGNED).reveal() == VECTOR
    assert refusal(VECTOR) is None


@pytest.mark.parametrize(
    "other",
    [
        msgspec.structs.replace(
            SIGNED, execution_id="{fp:13}:2f6d0a4e-1b3c-4d5e-8f90-a1b2c3d4e5f6"
        ),
        msgspec.structs.replace(SIGNED, waitpoint_id="7b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4e"),
        msgspec.structs.replace(SIGNED, created_at=1713100800151),
        msgspec.structs.replace(SIGNED, waitpoint_key="wpk"),
    ],
)
def test_a_token_vouches_for_one_waitpoint_only(other: Signed) -> None:
    assert refusal(VECTOR, signed=other) is InvalidToken
    assert mint(RING, other) != GOOD


@given(st.text(), st.text())
def test_free_text_comes_last_so_that_no_two_messages_are_one(key: str, other: str) -> None:
    key, other = (text.encode("utf-8", "replace").decode() for text in (key, other))
    tokens_of = [
        mint(RING, msgspec.structs.replace(SIGNED, waitpoint_key=one)) for one in (key, other)
    ]
    assert (tokens_of[0] == tokens_of[1]) == (key == other)


# ---- validation, in order

_DIGEST = VECTOR.partition(":")[2]
_GRACE = KeyRing(
    current_kid="k2", keys={"k2": Key(OTHER_SECRET), "k1": Key(SECRET, expires_at=NOW)}
)


def graced(expires_at: int) -> KeyRing:
    return KeyRing(
        current_kid="k2",
        keys={"k2": Key(OTHER_SECRET), "k1": Key(SECRET, expires_at=expires_at)},
    )


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("", MissingToken),
        (_DIGEST, InvalidToken),
        (":" + _DIGEST, InvalidToken),
        ("k1:", InvalidToken),
        (":", InvalidToken),
        (VECTOR[:-1], InvalidToken),
        (VECTOR + "0", InvalidToken),
        ("k9:" + _DIGEST, InvalidToken),
        ("k1:" + "0" * 64, InvalidToken),
        ("k1:" + _DIGEST.upper(), InvalidToken),
        ("k1:k1:" + _DIGEST[3:], InvalidToken),
        ("k1:" + "é" * 64, InvalidToken),
        ("k1:" + "\ud800" * 64, InvalidToken),
        (VECTOR, None),
    ],
)
def test_each_malformed_token_gets_its_code(
    token: str, expected: type[FlowFabricError] | None
) -> None:
    assert refusal(token) is expected


@pytest.mark.parametrize("place", range(64))
def test_every_digit_counts(place: int) -> None:
    digit = "0" if _DIGEST[place] != "0" else "1"
    assert refusal(f"k1:{_DIGEST[:place]}{digit}{_DIGEST[place + 1 :]}") is InvalidToken


@pytest.mark.parametrize(
    ("ring", "expected"),
    [
        (KeyRing(), HmacSecretNotInitialized),
        (KeyRing(keys={"k1": Key(SECRET)}), HmacSecretNotInitialized),
        (graced(0), TokenExpired),
        (graced(-5), TokenExpired),
        (graced(NOW - 1), TokenExpired),
        (graced(NOW), None),
        (graced(NOW + 1), None),
        (KeyRing(current_kid="k2", keys={"k2": Key(OTHER_SECRET)}), InvalidToken),
        (KeyRing(current_kid="k1", keys={"k1": Key("not hex")}), InvalidSecret),
        (KeyRing(current_kid="k1", keys={"k1": Key("abc")}), InvalidSecret),
        (KeyRing(current_kid="k1", keys={"k1": Key("")}), InvalidSecret),
        (KeyRing(current_kid="k1"), InvalidSecret),
        (KeyRing(current_kid="k1", keys={"k1": Key(SECRET, "md5")}), InvalidSecret),
        # The current key never expires, whatever is stored with it.
        (KeyRing(current_kid="k1", keys={"k1": Key(SECRET, expires_at=1)}), None),
    ],
)
def test_the_ring_decides_which_key_verifies(
    ring: KeyRing, expected: type[FlowFabricError] | None
) -> None:
    assert refusal(VECTOR, ring) is expected


@pytest.mark.parametrize("expires_at", ["soon", None, 1.5, True, "9999999999999"])
def test_a_stored_end_that_is_no_number_fails_closed(expires_at: object) -> None:
    body = {
        "current_kid": "k2",
        "keys": {
            "k2": {"secret": OTHER_SECRET},
            "k1": {"secret": SECRET, "expires_at": expires_at},
        },
    }
    assert refusal(VECTOR, read_ring(msgspec.json.encode(body))) is TokenExpired


def test_faults_come_in_order() -> None:
    broken = KeyRing(current_kid="k1", keys={"k1": Key("zz")})
    assert refusal("", KeyRing()) is MissingToken
    assert refusal("bad", KeyRing()) is InvalidToken
    assert refusal(VECTOR, KeyRing(), None) is HmacSecretNotInitialized
    assert refusal(VECTOR, broken, None) is InvalidSecret
    assert refusal(VECTOR, graced(1), None) is TokenExpired
    assert refusal(VECTOR, signed=None) is InvalidToken
    assert refusal(VECTOR, signed=msgspec.structs.replace(SIGNED, created_at=0)) is InvalidToken


def test_an_unknown_waitpoint_is_told_nothing_a_wrong_digest_is_not() -> None:
    told = []
    for token, signed in ((VECTOR, None), ("k1:" + "0" * 64, SIGNED), ("k9:" + _DIGEST, SIGNED)):
        with pytest.raises(InvalidToken) as caught:
            check_token(RING, WaitpointToken(token), signed, NOW)
        told.append(str(caught.value))
    assert len(set(told)) == 1


def test_an_unknown_waitpoint_costs_a_comparison_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    honest = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        nonlocal compared
        compared += 1
        return honest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for signed in (SIGNED, None):
        before = compared
        refusal(VECTOR, signed=signed)
        assert compared == before + 1


@pytest.mark.parametrize(
    ("ring", "expected"),
    [
        (KeyRing(), HmacSecretNotInitialized),
        (KeyRing(current_kid="k1"), HmacSecretNotInitialized),
        (KeyRing(current_kid="k1", keys={"k1": Key("")}), HmacSecretNotInitialized),
        (KeyRing(current_kid="k1", keys={"k1": Key("xyz")}), InvalidSecret),
    ],
)
def test_minting_needs_a_usable_key(ring: KeyRing, expected: type[FlowFabricError]) -> None:
    with pytest.raises(expected):
        mint(ring, SIGNED)


# ---- never shown


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (VECTOR, "k1:<REDACTED:len=64>"),
        ("", "<REDACTED:malformed>"),
        (_DIGEST, "<REDACTED:malformed>"),
        ("k1:short", "<REDACTED:malformed>"),
        ("a b:" + "0" * 64, "<REDACTED:malformed>"),
    ],
)
def test_printing_a_token_shows_its_key_id_at_most(token: str, shown: str) -> None:
    one = WaitpointToken(token)
    assert repr(one) == str(one) == f"{one}" == shown
    assert "%s %r" % (one, one) == f"{shown} {shown}"  # noqa: UP031


def test_a_token_is_computed_again_from_the_ring_and_its_digest() -> None:
    kept = digest_of(GOOD)
    assert minted_again(RING, kept, SIGNED) == GOOD
    assert minted_again(RING, None, SIGNED) is None
    assert minted_again(KeyRing(current_kid="k2", keys={"k2": Key(SECRET)}), kept, SIGNED) is None
    # A key that was installed anew under the same name signs otherwise.
    renewed = KeyRing(current_kid="k1", keys={"k1": Key(OTHER_SECRET)})
    assert minted_again(renewed, kept, SIGNED) is None
    assert minted_again(RING, kept, msgspec.structs.replace(SIGNED, created_at=1)) is None


def test_nothing_that_holds_a_secret_prints_it() -> None:
    waitpoint = Waitpoint(
        waitpoint_id="w", waitpoint_key="k", attempt_index=0, state="active", token=digest_of(GOOD)
    )
    body = write_document(waitpoint)
    document = Document(body, 1, 2)
    assert read_waitpoint(document).token == digest_of(GOOD)
    assert _DIGEST.encode() not in body
    shown = " ".join(map(repr, (RING, RING.keys["k1"], GOOD, Secret(SECRET), waitpoint, document)))
    assert _DIGEST not in shown
    assert SECRET not in shown
    assert digest_of(GOOD).fingerprint == hashlib.sha256(GOOD.reveal().encode()).hexdigest()[:16]


def test_secrets_are_equal_by_their_text_and_hash_to_nothing() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert WaitpointToken("a:b") == WaitpointToken("a:b") != WaitpointToken("a:c")
    assert not Secret("")
    for one in (Secret("a"), WaitpointToken("a")):
        with pytest.raises(TypeError):
            hash(one)
