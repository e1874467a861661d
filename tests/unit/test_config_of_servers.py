"""Settings of a server: addresses, tokens, the file beside the environment, and what is wrong."""

from pathlib import Path

import pytest

from flowfabric import app
from flowfabric.app import backend_of, close_engine, duties_of, open_engine
from flowfabric.backend.types import EventFilter
from flowfabric.backend.valkey.backend import ValkeyBackend
from flowfabric.config import Address, Settings, StoreUrl, settings_from, token_digest
from flowfabric.core.retention import LogLimits
from flowfabric.core.scopes import SCOPES
from flowfabric.duties.maintenance import Retention
from flowfabric.errors import InvalidInput, PayloadTooLarge
from flowfabric.operations.executions import Executions, Submission
from flowfabric.server.boot import dev

DIGEST = "ab" * 32


def problems_of(environment: dict[str, str], file: Path | None = None) -> tuple[str, ...]:
    with pytest.raises(InvalidInput) as caught:
        settings_from(environment, file)
    problems = caught.value.details["problems"]
    assert isinstance(problems, tuple)
    return problems


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9090", Address("127.0.0.1", 9090)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),
        ("[::1]:9090", Address("::1", 9090)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: Address) -> None:
    assert settings_from({"FF_LISTEN_ADDR": text}).listen == expected


@pytest.mark.parametrize("text", ["9090", ":9090", "host", "host:", "host:x", "host:65536"])
def test_what_is_no_address_is_refused(text: str) -> None:
    (problem,) = problems_of({"FF_LISTEN_ADDR": text})
    assert problem.startswith("invalid value for FF_LISTEN_ADDR: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), ("true", True), ("TRUE", True), ("0", False), ("False", False), ("", False)],
)
def test_a_switch_has_four_spellings(text: str, expected: bool) -> None:
    assert settings_from({"FF_ALLOW_INSECURE": text}).allow_insecure is expected


@pytest.mark.parametrize("text", ["yes", "on", "2", " ", "tru"])
def test_any_other_spelling_of_a_switch_is_refused(text: str) -> None:
    (problem,) = problems_of({"FF_ALLOW_INSECURE": text})
    assert problem.startswith("invalid value for FF_ALLOW_INSECURE: expected 1, true, 0 or false")


def test_lists_are_trimmed_and_their_empty_entries_dropped() -> None:
    settings = settings_from(
        {
            "FF_LANES": " a , b,,",
            "FF_ALLOWED_HOSTS": "One.Example,,two",
            "FF_CORS_ORIGINS": "https://a, https://b",
        }
    )
    assert settings.lanes == ("a", "b")
    assert settings.allowed_hosts == frozenset({"one.example", "two"})
    assert settings.cors_origins == ("https://a", "https://b")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"FF_SQLITE_PATH": ":memory:"}, StoreUrl("memory")),
        ({"FF_SQLITE_PATH": "file:a%20b.db"}, StoreUrl("sqlite", "a b.db")),
        ({"FF_BACKEND": "Memory"}, StoreUrl("memory")),
        (
            {"FF_BACKEND": "valkey", "FF_HOST": "h", "FF_PORT": "7", "FF_TLS": "1"},
            StoreUrl("valkey", "", {"tls": "true"}, host="h", port=7),
        ),
        (
            {"FF_BACKEND": "postgres", "FF_POSTGRES_URL": "postgresql://u@h/db"},
            StoreUrl("postgres", "db", host="h", port=5432, user="u"),
        ),
        (
            {"FF_URL": "valkeys://h:7", "FF_HOST": "h", "FF_TLS": "1", "FF_BACKEND": "VALKEY"},
            StoreUrl("valkey", "", {"tls": "true"}, host="h", port=7),
        ),
    ],
)
def test_single_variables_name_a_store(given: dict[str, str], expected: StoreUrl) -> None:
    assert settings_from(given).store == expected


@pytest.mark.parametrize(
    "other",
    [
        {"FF_BACKEND": "sqlite"},
        {"FF_HOST": "elsewhere"},
        {"FF_PORT": "1"},
        {"FF_TLS": "1"},
        {"FF_CLUSTER": "true"},
    ],
)
def test_a_url_and_variables_that_differ_are_refused(other: dict[str, str]) -> None:
    (problem,) = problems_of({"FF_URL": "valkey://here:7000", **other})
    assert problem == "invalid value for FF_URL: other variables describe another store"


def test_what_is_said_of_a_store_that_is_not_chosen_is_read_and_left_alone() -> None:
    others = {"FF_HOST": "h", "FF_POSTGRES_URL": "postgresql://h/db", "FF_AUTO_MIGRATE": "1"}
    assert settings_from(others).store == StoreUrl("sqlite", "flowfabric.db")
    problems = problems_of(
        {"FF_PORT": "x", "FF_POSTGRES_URL": "http://h", "FF_POSTGRES_POOL_SIZE": "0"}
    )
    assert [one.split(":")[0].split()[-1] for one in problems] == [
        "FF_POSTGRES_URL",
        "FF_POSTGRES_POOL_SIZE",
        "FF_PORT",
    ]


def test_postgres_needs_its_url() -> None:
    (problem,) = problems_of({"FF_BACKEND": "postgres"})
    assert problem == "invalid value for FF_POSTGRES_URL: postgres needs it"


@pytest.mark.parametrize(("size", "readers"), [("1", 1), ("2", 1), ("4", 3), ("9", 8)])
def test_of_the_connections_to_a_file_one_writes(size: str, readers: int) -> None:
    assert settings_from({"FF_SQLITE_POOL_SIZE": size}).sqlite_readers == readers


def test_where_a_store_is_says_nothing_of_who_logs_in() -> None:
    store = settings_from({"FF_URL": "valkeys+cluster://user:secret@h:7"}).store
    assert store.where == "valkey h:7 tls cluster"
    assert settings_from({"FF_SQLITE_PATH": "x.db"}).store.where == "sqlite x.db"


def test_sentinels_are_several_and_know_a_primary_by_name() -> None:
    url = "valkeys+sentinel://user:secret@a,b:7,[::1]:8/orders"
    store = settings_from({"FF_URL": url}).store
    assert (store.path, store.user, store.password.reveal()) == ("orders", "user", "secret")
    assert store.sentinels == (("a", 26379), ("b", 7), ("::1", 8))
    assert store.where == "valkey orders via sentinels a:26379,b:7,::1:8 tls"


@pytest.mark.parametrize("end", ["", "/", "/a/b"])
def test_sentinels_without_a_name_are_refused(end: str) -> None:
    (problem,) = problems_of({"FF_URL": f"valkey+sentinel://h:26379{end}"})
    assert "write valkey+sentinel://host:26379/name" in problem


def test_seconds_take_fractions() -> None:
    given = settings_from({"FF_RETENTION_TRIMMER_INTERVAL_S": "1.5"})
    assert given.retention_trimmer_interval_s == 1.5
    for text in ("x", "nan", "inf", "-1", "86401"):
        assert len(problems_of({"FF_RETENTION_TRIMMER_INTERVAL_S": text})) == 1


@pytest.mark.parametrize("text", ["0", "0.01", "0.0999", "0.1"])
def test_an_interval_that_is_too_short_is_raised(text: str) -> None:
    given = settings_from({"FF_RETENTION_TRIMMER_INTERVAL_S": text})
    assert given.retention_trimmer_interval_s == 0.1


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("sqlite:///a.db?durabilty=fsync", "known: durability"),
        ("sqlite:///a.db?durability=fsync&tls=true", "known: durability"),
        ("sqlite:///a.db?durabilty=", "known: durability"),
        ("memory://?x=1", "memory has none"),
        ("valkey://h:6379?clutser=true", "known: allow_volatile, cluster, connect_timeout_ms"),
        ("valkeys://h:6379?tlsca=x", "tls_ca"),
        ("valkey+cluster://h:6379?a=b", "sentinel_auth"),
        ("valkey+sentinel://h:26379/name?a=b", "sentinel_auth"),
    ],
)
def test_an_unknown_option_of_a_store_is_refused(url: str, known: str) -> None:
    (problem,) = problems_of({"FF_URL": url})
    assert "unknown option" in problem
    assert known in problem


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("sqlite:///a.db?pool_size=1", "pool_size: expected 2..1000, got '1'"),
        ("postgresql://me@h/db?pool_size=x", "pool_size: expected 2..1000, got 'x'"),
        ("postgresql://me@h/db?connect_timeout_ms=99", "connect_timeout_ms: expected 100..60000"),
        (
            "postgresql://me@h/db?request_timeout_ms=20000",
            "request_timeout_ms: expected 1000..10000",
        ),
        ("valkey://h?connect_timeout_ms=", "connect_timeout_ms: expected 100..60000, got ''"),
        ("valkey://h?request_timeout_ms=-1", "request_timeout_ms: expected 1000..600000"),
        ("valkey://h?retry_ms=1e3", "retry_ms: expected 0..60000, got '1e3'"),
    ],
)
def test_an_option_of_a_store_has_its_range(url: str, told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        backend_of(settings_from({"FF_URL": url}))
    assert told in str(refused.value)


def test_options_of_a_store_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = "connect_timeout_ms=200&request_timeout_ms=3000"
    valkey = backend_of(settings_from({"FF_URL": f"valkey://h?{asked}&retry_ms=0"}))
    assert isinstance(valkey, ValkeyBackend)
    (node,) = valkey.calls.topology.primaries()
    assert (node.login.connect_s, node.login.request_s) == (0.2, 3)
    assert (valkey.opening.retry_s, valkey.opening.request_s) == (0, 3)
    opening = app._postgres(settings_from({"FF_URL": f"postgresql://me@h/db?{asked}&pool_size=7"}))
    assert (opening.target.connect_s, opening.target.statement_ms) == (0.2, 3_000)
    assert opening.pool_size == 7
    given: list[int] = []
    monkeypatch.setattr(app, "open_sqlite", lambda _, *, readers, **__: given.append(readers))
    backend_of(settings_from({"FF_URL": "sqlite:///a.db?pool_size=7"}))
    backend_of(settings_from({"FF_URL": "sqlite:///a.db", "FF_SQLITE_POOL_SIZE": "5"}))
    assert given == [6, 4]


def test_the_one_token_has_every_scope_and_is_kept_as_its_digest() -> None:
    settings = settings_from({"FF_API_TOKEN": "secret-token-0123"})
    (token,) = settings.tokens
    assert (token.digest, token.scopes) == (token_digest("secret-token-0123"), SCOPES)
    assert token.namespaces is None
    assert "secret-token-0123" not in repr(settings)
    assert token.digest not in repr(settings)


@pytest.mark.parametrize(
    "text", ["two words, long enough", "ümlaut-ümlaut-ümlaut", "tab\tbed", "short-0123456789"[:15]]
)
def test_a_token_that_cannot_be_sent_is_refused_without_being_shown(text: str) -> None:
    (problem,) = problems_of({"FF_API_TOKEN": text})
    assert problem.startswith("invalid value for FF_API_TOKEN: ")
    assert text not in problem


@pytest.mark.parametrize("text", ["aa" * 31, "xy" * 32, "aa" * 32 + ",", "a" * 65])
def test_a_key_of_the_store_that_is_too_short_is_refused_without_being_shown(text: str) -> None:
    (problem,) = problems_of({"FF_STORE_KEY": text})
    assert problem == (
        "invalid value for FF_STORE_KEY: "
        "expected keys of 64 hex digits or more, separated by commas"
    )


def test_keys_of_the_store_are_read_and_never_shown() -> None:
    settings = settings_from({"FF_STORE_KEY": f"{'Ab' * 32}, {'cd' * 40}"})
    assert [one.reveal() for one in settings.store_keys.keys] == ["ab" * 32, "cd" * 40]
    assert "abab" not in repr(settings)


def test_a_file_speaks_where_the_environment_is_silent(tmp_path: Path) -> None:
    file = tmp_path / "ff.toml"
    file.write_text(
        'lanes = ["one", "two"]\nallow_insecure = true\nmax_sse_streams = 7\n'
        "retention_trimmer_interval_s = 2.5\n"
        f'[[token]]\nname = "ci"\nsha256 = "{DIGEST}"\nscopes = ["read", "submit"]\n'
        f'[[token]]\nsha256 = "{DIGEST.upper()}"\nscopes = ["worker"]\nnamespaces = ["a"]\n'
    )
    settings = settings_from({"FF_CONFIG": str(file), "FF_MAX_SSE_STREAMS": "8"})
    assert settings.lanes == ("one", "two")
    assert settings.allow_insecure is True
    assert settings.max_sse_streams == 8
    assert settings.retention_trimmer_interval_s == 2.5
    first, second = settings.tokens
    assert (first.name, first.scopes) == ("ci", frozenset({"read", "submit"}))
    assert (second.digest, second.namespaces) == (DIGEST, frozenset({"a"}))
    assert settings_from({}, file).max_sse_streams == 7


def test_everything_wrong_with_a_file_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "ff.toml"
    file.write_text(
        'lane = "x"\nFF_LANES = "x"\nmax_sse_streams = 0\n[listen_addr]\nhost = "x"\n'
        '[[token]]\nsha256 = "short"\nscopes = ["read"]\n'
        f'[[token]]\nsha256 = "{DIGEST}"\nscopes = ["everything"]\n'
        f'[[token]]\nsha256 = "{DIGEST}"\nscopes = ["read"]\nsecret = "x"\n'
        f'[[token]]\nsha256 = "{DIGEST}"\nscopes = ["read"]\nnamespaces = ["a:b"]\n'
    )
    problems = "\n".join(problems_of({}, file))
    for told in (
        "FF_CONFIG: unknown key 'lane'",
        "FF_CONFIG: unknown key 'FF_LANES'",
        "FF_MAX_SSE_STREAMS: expected an integer",
        "FF_LISTEN_ADDR: expected a value, got a table",
        "token[0]: sha256: expected 64 hexadecimal digits",
        "token[1]: scopes",
        "token[2]: secret: unknown member",
        "token[3]: namespaces",
    ):
        assert f"invalid value for {told}" in problems


@pytest.mark.parametrize("content", ["lanes = [", "\x00", "a = 1\na = 2"])
def test_a_file_that_is_no_toml_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "ff.toml"
    file.write_text(content)
    (problem,) = problems_of({"FF_CONFIG": str(file)})
    assert problem.startswith("invalid value for FF_CONFIG: ")


def test_a_url_and_other_variables_name_the_same_store_or_none() -> None:
    url = {"FF_URL": "sqlite:///a.db"}
    assert settings_from({**url, "FF_BACKEND": "SQLite", "FF_SQLITE_PATH": "a.db"}).store == (
        StoreUrl("sqlite", "a.db")
    )
    for other in ({"FF_BACKEND": "memory"}, {"FF_SQLITE_PATH": "b.db"}):
        (problem,) = problems_of({**url, **other})
        assert problem.startswith("invalid value for FF_URL: ")


def test_trying_out_needs_nothing() -> None:
    settings = dev()
    assert settings.store.scheme == "memory"
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.1", 0)
    assert settings.tokens == ()
    assert dev(Settings(lanes=("x",))).lanes == ("x",)


def test_limits_of_the_log_and_of_payloads_are_settings() -> None:
    given = settings_from(
        {"FF_LOG_RETENTION_S": "60", "FF_LOG_ENTRIES": "10", "FF_MAX_PAYLOAD_BYTES": "100"}
    )
    assert (given.log_limits, given.max_payload_bytes) == (LogLimits(60_000, 10), 100)
    assert settings_from({"FF_LOG_ENTRIES": "10"}).log_limits == LogLimits(keep=10)
    for name in ("FF_LOG_RETENTION_S", "FF_LOG_ENTRIES", "FF_MAX_PAYLOAD_BYTES"):
        for text in ("0", "-1", "x", "1.5"):
            (problem,) = problems_of({name: text})
            assert problem.startswith(f"invalid value for {name}: expected an integer in 1..")
    assert len(problems_of({"FF_MAX_PAYLOAD_BYTES": "1048577"})) == 1


async def test_limits_of_the_settings_reach_the_engine_and_retention(tmp_path: Path) -> None:
    settings = settings_from(
        {"FF_BACKEND": "memory", "FF_LOG_ENTRIES": "1", "FF_MAX_PAYLOAD_BYTES": "3"}
    )
    engine = await open_engine(settings)
    with pytest.raises(PayloadTooLarge, match="at most 3 bytes"):
        await engine.executions.create(Submission(kind="k", input=b"1234"))
    for _ in range(3):
        made = await engine.executions.create(Submission(kind="k", input=b"123"))
        await engine.use_case(Executions.cancel)(made.execution_id, "unwanted")
    (retention,) = [
        loop.duty for loop in duties_of(engine, settings).loops if isinstance(loop.duty, Retention)
    ]
    backend = engine.deps.store.backend
    oldest = await backend.cursor("oldest")
    assert len((await backend.events(oldest, EventFilter(), 10)).events) >= 3
    await retention.visit()
    oldest = await backend.cursor("oldest")
    assert len((await backend.events(oldest, EventFilter(), 10)).events) == 1
    await close_engine(engine)
