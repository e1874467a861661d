"""Settings of a process: one object, with a default for everything."""

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from flowfabric.core.duty_filter import DutyFilter
from flowfabric.core.partitions import PartitionCounts
from flowfabric.core.scopes import SCOPES, Scope
from flowfabric.core.tokens import Secret

DEFAULT_PATH: Final = "flowfabric.db"

SERVER_SCHEMES: Final = frozenset({"http", "https"})


class StoreUrl(msgspec.Struct, frozen=True):
    """Which store, and where: `sqlite:///path`, `memory://`, `valkey://host:port`; or which server
    has one, whose whole address is the path then."""

    scheme: str
    path: str = ""
    options: Mapping[str, str] = msgspec.field(default_factory=dict)
    host: str = "localhost"
    port: int = 6379
    user: str = ""
    password: Secret = Secret("")
    # Those who know where the server is that they call by the name in the path.
    sentinels: tuple[tuple[str, int], ...] = ()

    @property
    def where(self) -> str:
        """For people and logs: never who logs in, nor with what."""
        switched = [name for name in ("tls", "cluster") if name in self.options]
        match self.scheme:
            case "valkey" if self.sentinels:
                places = ",".join(f"{host}:{port}" for host, port in self.sentinels)
                return " ".join([f"valkey {self.path} by sentinels {places}", *switched])
            case "valkey" | "postgres":
                return " ".join([f"{self.scheme} {self.host}:{self.port}", *switched])
            case "http" | "https":
                return self.path
            case _:
                return f"{self.scheme} {self.path}".rstrip()


class ApiToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token the server accepts, known by its digest alone; no namespaces means all of them."""

    name: str
    digest: str
    scopes: frozenset[Scope] = SCOPES
    namespaces: frozenset[str] | None = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("name", self.name), ("scopes", sorted(self.scopes))]

    def __repr__(self) -> str:
        return f"ApiToken({self.name!r}, scopes={sorted(self.scopes)})"


class Address(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 9090

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    store: StoreUrl = StoreUrl("sqlite", DEFAULT_PATH)
    counts: PartitionCounts = PartitionCounts()
    lanes: tuple[str, ...] = ("default",)
    searchable_tags: frozenset[str] = frozenset()
    # How long a store that is away is waited for when it is opened.
    boot_timeout_s: float = 60.0
    timer_sweep_interval_ms: int = 250
    retention_trimmer_interval_s: float = 60
    scanner_filter: DutyFilter = DutyFilter()
    # Stream reads and tails under way at once.
    max_concurrent_stream_ops: int = 64
    # Signs waitpoint tokens; a store that keeps its own secret needs none.
    waitpoint_secret: Secret = Secret("")
    waitpoint_grace_ms: int = 86_400_000
    # How often a waiting claim looks for work while notifications are down.
    claim_poll_interval_ms: int = 1_000
    # SQLite: threads that read; one more writes.
    sqlite_readers: int = 3
    # Valkey: accept another kind of server; load the functions without asking for their version,
    # or leave loading them to others and refuse to work without them.
    allow_redis: bool = False
    force_lua_reload: bool = False
    skip_library_load: bool = False
    # What a client of a server shows it.
    api_token: Secret = Secret("")
    # The server's own.
    listen: Address = Address()
    allow_insecure: bool = False
    allowed_hosts: frozenset[str] = frozenset()
    tokens: tuple[ApiToken, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_sse_streams: int = 1_000
    serves_metrics: bool = True
    # Shows metrics to callers without a token.
    metrics_open: bool = False


def token_digest(text: str) -> str:
    """What is kept of a token."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
