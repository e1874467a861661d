"""What web pages may do: hosts, origins and CORS."""

import httpx
import pytest

from flowfabric.config import Address
from flowfabric.errors import InvalidInput
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.tokens import bearer, token

TOKEN = token("secret", "admin")
BODY = {"lane_id": "default", "execution_kind": "greet"}
ASKING = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9090", 200),
        ("localhost", 200),
        ("LOCALHOST:1234", 200),
        ("proxy.example:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1]:9090", 403),
        ("", 403),
    ],
)
async def test_without_a_token_only_known_hosts_are_served(
    host: str, status: int, serve: Serve
) -> None:
    served = await serve(allowed_hosts=frozenset({"proxy.example"}))
    for path in ("/healthz", "/v1/partitions", "/metrics"):
        answer = await served.call(f"GET {path}", headers={"Host": host})
        assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"] == "forbidden: host"


async def test_on_a_wildcard_the_address_of_the_connection_is_its_name(serve: Serve) -> None:
    served = await serve(listen=Address("0.0.0.0", 0), allow_insecure=True)
    # The client's transport names the base address as the server's own.
    assert (await served.call("GET /healthz")).status_code == 200
    assert await served.refused("GET /healthz", headers={"Host": "0.0.0.0"}) == (403, "forbidden")


async def test_with_a_token_any_host_will_do(serve: Serve) -> None:
    served = await serve(tokens=(TOKEN,))
    headers = {**bearer("secret"), "Host": "evil.example"}
    assert (await served.call("GET /v1/partitions", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 201),
        ("http://127.0.0.1:9090", 201),
        ("http://127.0.0.1:9091", 403),
        ("http://localhost:9090", 403),
        ("https://app.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
async def test_without_a_token_no_other_origin_may_write(
    origin: str | None, status: int, serve: Serve
) -> None:
    served = await serve(cors_origins=("https://app.example",))
    headers = {} if origin is None else {"Origin": origin}
    answer = await served.call("POST /v1/executions", BODY, headers=headers)
    assert answer.status_code == status
    if status == 403:
        assert answer.json()["error"] == "forbidden: origin"
    assert (await served.call("GET /v1/partitions", headers=headers)).status_code == 200


async def test_with_a_token_a_listed_origin_may_write(serve: Serve) -> None:
    served = await serve(cors_origins=("https://app.example",), tokens=(TOKEN,))
    headers = {**bearer("secret"), "Origin": "https://app.example"}
    answer = await served.call("POST /v1/executions", BODY, headers=headers)
    assert answer.status_code == 201
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "X-Next-Cursor" in answer.headers["access-control-expose-headers"]


def _cors(answer: httpx.Response) -> list[str]:
    return [name for name in answer.headers if name.startswith("access-control")]


async def test_without_origins_no_cors_header_is_ever_sent(served: Served) -> None:
    for line in ("GET /v1/partitions", "OPTIONS /v1/partitions"):
        assert _cors(await served.call(line, headers=ASKING)) == []


@pytest.mark.parametrize("has_token", [False, True])
async def test_a_preflight_is_answered_before_anybody_is_asked_who_they_are(
    has_token: bool, serve: Serve
) -> None:
    tokens = (TOKEN,) if has_token else ()
    served = await serve(cors_origins=("https://app.example",), tokens=tokens)
    answer = await served.call("OPTIONS /v1/executions", headers=ASKING)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-methods"] == "GET, POST, PUT, DELETE"
    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert ("authorization" in allowed) is has_token
    assert {"content-type", "last-event-id"} <= set(allowed)


async def test_an_origin_that_is_not_listed_is_told_nothing(serve: Serve) -> None:
    served = await serve(cors_origins=("https://app.example",))
    other = {**ASKING, "Origin": "https://other.example"}
    assert _cors(await served.call("OPTIONS /v1/executions", headers=other)) == []
    assert _cors(await served.call("GET /v1/partitions", headers=other)) == []


async def test_a_star_lets_every_page_read_and_none_write(serve: Serve) -> None:
    served = await serve(cors_origins=("*",))
    anyone = {"Origin": "https://any.example"}
    answer = await served.call("GET /v1/partitions", headers=anyone)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-credentials" not in answer.headers
    assert await served.refused("POST /v1/executions", BODY, headers=anyone) == (403, "forbidden")
    asking = {**anyone, "Access-Control-Request-Method": "PATCH"}
    preflight = await served.call("OPTIONS /v1/executions", headers=asking)
    assert preflight.headers["access-control-allow-methods"] == "PATCH"


async def test_metrics_are_outside_cors(serve: Serve) -> None:
    served = await serve(cors_origins=("*",))
    assert _cors(await served.call("GET /metrics", headers=ASKING)) == []


async def test_origins_that_cannot_be_headers_are_dropped(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    await serve(cors_origins=("https://app.example", "https://bad example"))
    assert "is not a valid header value" in caplog.text


async def test_no_usable_origin_stops_the_boot(serve: Serve) -> None:
    with pytest.raises(InvalidInput, match="FF_CORS_ORIGINS"):
        await serve(cors_origins=("bad origin",))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "example.org"])
async def test_another_address_without_a_token_is_refused(host: str, serve: Serve) -> None:
    with pytest.raises(InvalidInput, match="FF_ALLOW_INSECURE"):
        await serve(listen=Address(host, 9090))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
async def test_loopback_needs_no_token(host: str, serve: Serve) -> None:
    await serve(listen=Address(host, 9090))
