"""API tokens made at run time: over HTTP, and on every server of a store."""

import logging
from typing import Any

import pytest

from flowfabric.operations.tokens import NewToken
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.tokens import bearer, token

ROOT = token("root", "admin")
ADMIN_OF_A = token("admin of a", "admin", namespaces=frozenset({"a"}))


async def create(served: Served, by: str = "root", **fields: Any) -> dict[str, Any]:
    body = {"name": "ci", "scopes": ["read"]} | fields
    reply = await served.call("POST /v1/tokens", body, headers=bearer(by))
    assert reply.status_code == 201, reply.text
    assert reply.headers["cache-control"] == "no-store"
    made: dict[str, Any] = reply.json()
    return made


async def status_of(served: Served, text: str, path: str = "/v1/lanes?namespace=a") -> int:
    return (await served.client.get(path, headers=bearer(text))).status_code


async def test_a_token_counts_at_once_and_until_it_is_revoked(serve: Serve) -> None:
    served = await serve(tokens=(ROOT,))
    made = await create(served, namespaces=["a"])
    assert await status_of(served, made["token"]) == 200
    assert await status_of(served, made["token"], "/v1/lanes?namespace=b") == 403
    assert await status_of(served, made["token"], "/v1/tokens") == 403
    assert await status_of(served, made["token"] + "x") == 401
    listed = (await served.client.get("/v1/tokens", headers=bearer("root"))).json()
    assert [one["name"] for one in listed["items"]] == ["ci"]
    assert made["token"] not in str(listed)
    assert "digest" not in str(listed)
    again = await served.call(
        "POST /v1/tokens", {"name": "ci", "scopes": ["read"]}, headers=bearer("root")
    )
    assert (again.status_code, again.json()["kind"]) == (409, "conflict")
    line = f"DELETE /v1/tokens/{made['token_id']}"
    assert (await served.call(line, headers=bearer("root"))).status_code == 204
    assert await status_of(served, made["token"]) == 401
    assert (await served.call(line, headers=bearer("root"))).status_code == 404


async def test_an_admin_of_a_namespace_makes_tokens_of_it_only(serve: Serve) -> None:
    served = await serve(tokens=(ROOT, ADMIN_OF_A))
    foreign = await create(served, namespaces=["b"])
    own = await create(served, "admin of a", namespaces=["a"], scopes=["admin"])
    assert await status_of(served, own["token"]) == 200
    for refused in ({"namespaces": ["b"]}, {"namespaces": ["a"], "scopes": ["metrics"]}):
        body = {"name": "x", "scopes": ["read"]} | refused
        headers = bearer("admin of a")
        reply = await served.client.post("/v1/tokens", json=body, headers=headers)
        assert reply.status_code == 403, refused
    path = f"/v1/tokens/{foreign['token_id']}"
    assert (await served.client.delete(path, headers=bearer("admin of a"))).status_code == 404
    listed = (await served.client.get("/v1/tokens", headers=bearer("admin of a"))).json()
    assert [one["token_id"] for one in listed["items"]] == [own["token_id"]]


async def test_a_server_without_tokens_makes_none(serve: Serve) -> None:
    served = await serve()
    reply = await served.client.post("/v1/tokens", json={"name": "ci", "scopes": ["admin"]})
    assert reply.status_code == 403
    assert "needs a server with an API token" in reply.json()["error"]
    assert (await served.client.get("/v1/lanes")).status_code == 200


async def test_a_store_that_has_tokens_closes_its_server(served: Served) -> None:
    engine = served.application.services.engine
    assert (await served.client.get("/v1/lanes")).status_code == 200
    made = await engine.api_tokens.create_token(NewToken(name="first", scopes=("admin",)))
    assert (await served.client.get("/v1/lanes")).status_code == 401
    assert await status_of(served, made.token) == 200
    # The check of Host protects servers without tokens only.
    reply = await served.client.get(
        "/v1/lanes", headers=bearer(made.token) | {"Host": "flows.example"}
    )
    assert reply.status_code == 200


async def test_no_log_line_has_a_token(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    served = await serve(tokens=(ROOT,))
    made = await create(served)
    await served.client.delete(f"/v1/tokens/{made['token_id']}", headers=bearer("root"))
    told = [one for one in caplog.records if one.name == "flowfabric.audit"]
    assert [one.__dict__["audit"] for one in told] == ["token_created", "token_revoked"]
    for one in told:
        assert (one.__dict__["token_id"], one.__dict__["caller"]) == (made["token_id"], "root")
    assert made["token"] not in "".join(str(one.__dict__) for one in caplog.records)
