"""The ring of signing keys: seeding, rotation, clean-up."""

import msgspec
import pytest

from flowfabric.core.tokens import (
    MOST_KEYS,
    Key,
    KeyRing,
    Rotation,
    check_secret,
    first_ring,
    read_ring,
    rotate,
    seed,
    without_stale,
    write_ring,
)
from flowfabric.errors import (
    Corruption,
    InvalidGraceMs,
    InvalidInput,
    InvalidKid,
    InvalidSecretHex,
    ResourceExhausted,
    RotationConflict,
)

NOW = 1_700_000_000_000
A, B, C = "aa" * 32, "bb" * 32, "cc" * 32
RING = first_ring("k1", A, NOW - 10)


def rotated(ring: KeyRing, kid: str, secret: str, grace: int = 1_000, now: int = NOW) -> KeyRing:
    after = rotate(ring, kid, secret, grace, now).ring
    assert after is not None
    return after


@pytest.mark.parametrize("kid", ["", ":", "a:b", "a b", "é", "x" * 65, "a\n", None, 7])
def test_a_kid_outside_the_charset_is_refused(kid: str) -> None:
    with pytest.raises(InvalidKid):
        rotate(RING, kid, "not hex either", "nor this", NOW)


@pytest.mark.parametrize(
    "secret",
    ["", "abc", "zz" * 16, "0x" + "00" * 16, "aa" * 16 + " ", "aa", "ab" * 15, "ab" * 513, None],
)
def test_a_secret_that_is_not_hex_of_sixteen_bytes_at_least_is_refused(secret: str) -> None:
    with pytest.raises(InvalidSecretHex):
        rotate(RING, "k2", secret, -1, NOW)


@pytest.mark.parametrize("grace", [-1, 2**53, 1.0, "5", None, True])
def test_a_grace_that_is_no_length_of_time_is_refused(grace: object) -> None:
    with pytest.raises(InvalidGraceMs):
        rotate(RING, "k2", B, grace, NOW)


@pytest.mark.parametrize("grace", [0, 2**53 - 1])
def test_the_bounds_of_the_grace_are_inside(grace: int) -> None:
    assert rotate(RING, "k2", B, grace, NOW).new_kid == "k2"


def test_a_rotation_gives_the_old_key_its_grace() -> None:
    done = rotate(RING, "k2", B, 1_000, NOW)
    assert done == Rotation("k2", done.ring, "k1", 0)
    assert done.ring == KeyRing(
        current_kid="k2",
        keys={
            "k1": Key(A, created_at=NOW - 10, expires_at=NOW + 1_000),
            "k2": Key(B, created_at=NOW),
        },
        previous_kid="k1",
        previous_expires_at=NOW + 1_000,
    )


def test_the_first_rotation_has_nobody_to_replace() -> None:
    done = rotate(KeyRing(), "k1", A, 1_000, NOW)
    assert done == Rotation("k1", KeyRing(current_kid="k1", keys={"k1": Key(A, created_at=NOW)}))


@pytest.mark.parametrize("secret", [A, A.upper()])
def test_the_same_key_again_changes_nothing(secret: str) -> None:
    assert rotate(RING, "k1", secret, 1_000, NOW) == Rotation("k1", is_noop=True)


def test_a_current_key_without_its_secret_gets_it() -> None:
    bare = KeyRing(current_kid="k1", keys={"k1": Key("", created_at=5)})
    done = rotate(bare, "k1", A, 1_000, NOW)
    assert done.is_noop
    assert done.ring == KeyRing(current_kid="k1", keys={"k1": Key(A, created_at=5)})


@pytest.mark.parametrize("kid", ["k1", "k2"])
def test_a_known_kid_with_another_secret_conflicts(kid: str) -> None:
    both = rotated(RING, "k2", B)
    with pytest.raises(RotationConflict) as caught:
        rotate(both, kid, C, 1_000, NOW)
    assert caught.value.detail == kid


def test_back_to_a_former_key_makes_it_current_without_an_end() -> None:
    back = rotated(rotated(RING, "k2", B), "k1", A, now=NOW + 1)
    assert back.current_kid == "k1"
    assert back.keys["k1"] == Key(A, created_at=NOW - 10)
    assert back.keys["k2"].expires_at == NOW + 1_001


def test_keys_within_their_grace_stay_and_others_go() -> None:
    three = rotated(rotated(RING, "k2", B), "k3", C, grace=500)
    assert {kid: key.expires_at for kid, key in three.keys.items()} == {
        "k1": NOW + 1_000,
        "k2": NOW + 500,
        "k3": 0,
    }
    done = rotate(three, "k4", A, 0, NOW + 1_000)
    assert done.gc_count == 1
    assert sorted(done.ring.keys if done.ring else ()) == ["k1", "k3", "k4"]


def test_a_ring_holds_a_bounded_number_of_keys() -> None:
    ring = RING
    for number in range(MOST_KEYS - 1):
        ring = rotated(ring, f"n{number}", f"{number:064x}", now=NOW + number)
    assert len(ring.keys) == MOST_KEYS
    with pytest.raises(ResourceExhausted, match="64 signing keys are within their grace") as caught:
        rotate(ring, "more", A, 1_000, NOW + 100)
    assert caught.value.details["retry_after_ms"] == 900
    # A repeat changes nothing, and a key whose grace is over makes room.
    assert rotate(ring, ring.current_kid, f"{MOST_KEYS - 2:064x}", 1_000, NOW + 100).is_noop
    assert rotate(ring, "more", A, 1_000, NOW + 1_001).ring is not None


def test_a_key_that_is_neither_current_nor_ending_goes() -> None:
    stray = KeyRing(current_kid="k1", keys={"k1": Key(A), "stray": Key(B)})
    done = rotate(stray, "k2", C, 0, NOW)
    assert done.gc_count == 1
    assert sorted(done.ring.keys if done.ring else ()) == ["k1", "k2"]


# ---- seeding


def test_a_seed_installs_the_first_key() -> None:
    seeding = seed(KeyRing(), "k1", A, NOW)
    assert seeding.ring == first_ring("k1", A, NOW)


def test_a_repeated_seed_says_whether_the_secret_is_the_same() -> None:
    assert (seed(RING, "k1", A.upper(), NOW).ring, seed(RING, "k1", A, NOW).same_secret) == (
        None,
        True,
    )
    assert seed(RING, "k1", B, NOW).same_secret is False


@pytest.mark.parametrize(
    ("kid", "secret"), [("", A), ("a:b", A), ("k1", A[:-2]), ("k1", "z" * 64), ("k1", "")]
)
def test_a_seed_must_be_well_formed(kid: str, secret: str) -> None:
    with pytest.raises(InvalidInput):
        seed(KeyRing(), kid, secret, NOW)


def test_a_seed_does_not_replace_another_key() -> None:
    with pytest.raises(InvalidInput, match="rotate"):
        seed(RING, "k2", B, NOW)


# ---- clean-up and form


def test_only_keys_long_past_their_grace_are_dropped() -> None:
    ring = KeyRing(
        current_kid="now",
        keys={
            "now": Key(A, expires_at=1),
            "ended": Key(B, expires_at=99),
            "just": Key(B, expires_at=100),
            "later": Key(B, expires_at=500),
            "stray": Key(B),
        },
    )
    assert sorted(without_stale(ring, 100).keys) == ["just", "later", "now"]
    tidy = first_ring("k1", A, NOW)
    assert without_stale(tidy, NOW) is tidy


def test_a_ring_reads_back_as_it_was_written() -> None:
    ring = rotated(RING, "k2", B)
    assert read_ring(write_ring(ring)) == ring
    assert read_ring(write_ring(KeyRing())) == KeyRing()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"null"])
def test_a_ring_that_cannot_be_read_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corruption):
        read_ring(body)


@pytest.mark.parametrize(
    "stored", [{"keys": 1}, {"keys": {"k": 1}}, {"current_kid": 5, "keys": {"k": {"secret": 5}}}]
)
def test_nonsense_inside_a_ring_counts_as_missing(stored: dict[str, object]) -> None:
    ring = read_ring(msgspec.json.encode(stored))
    assert ring.current_kid == ""
    assert all(key.secret == "" for key in ring.keys.values())


@pytest.mark.parametrize("secret", ["", "ab" * 15, "abc", "zz" * 16, "ab" * 16 + "a"])
def test_a_configured_secret_is_hex_of_sixteen_bytes_at_least(secret: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_secret(secret)
    assert not secret or secret not in str(caught.value)


def test_a_configured_secret_passes() -> None:
    assert check_secret("ab" * 16) == "ab" * 16
