"""The OpenAPI document, made from the declarations that decode and answer requests."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any, Final

import msgspec

from flowfabric.core.policy import ExecutionPolicy, ExponentialBackoff, RetryPolicy
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import (
    FlowFabricError,
    Forbidden,
    InvalidBody,
    InvalidContentType,
    InvalidInput,
    InvalidJson,
    PayloadTooLarge,
    ResourceExhausted,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from flowfabric.operations.answers import ErrorBody
from flowfabric.operations.types import EXECUTION_PATTERN, UUID_PATTERN
from flowfabric.server.route import Route

_REFS: Final = "#/components/schemas/{name}"
_UUIDS: Final = frozenset({"flow_id", "waitpoint_id", "budget_id"})
_BODY_FAULTS: Final = (InvalidJson, InvalidContentType, InvalidBody, PayloadTooLarge)
# What any route may answer.
_EVERYWHERE: Final = (InvalidInput, ResourceExhausted, Unavailable, TimedOut)
_GUARDED: Final = (Unauthorized, Forbidden)


def document_of(routes: Iterable[Route]) -> dict[str, Any]:
    listed = list(routes)
    schemas = _Schemas(listed)
    paths: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for route in listed:
        paths[route.path][route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "FlowFabric", "version": version("flowfabric")},
        "paths": dict(paths),
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """The schemas of all types the routes name."""

    def __init__(self, routes: list[Route]) -> None:
        kinds: list[Any] = [ErrorBody, ExecutionPolicy]
        for route in routes:
            answers = (one for answer in route.answers.values() for one in _kinds(answer))
            kinds += [route.body, *answers] if route.body else answers
        unique = list(dict.fromkeys(kinds))
        found, components = msgspec.json.schema_components(
            unique, schema_hook=_schema_of, ref_template=_REFS
        )
        _let_backoffs_omit_their_type(components)
        self._of: dict[Any, dict[str, Any]] = dict(zip(unique, found, strict=True))
        _, policies = msgspec.json.schema_components([ExecutionPolicy], ref_template=_REFS)
        self.components = {
            name: _nullable(one) if name in policies or _is_request(one) else one
            for name, one in components.items()
        }

    def of(self, kind: Any) -> dict[str, Any]:
        if isinstance(kind, tuple):
            return {"anyOf": [self._of[one] for one in kind]}
        return self._of[kind]


def _schema_of(kind: type) -> dict[str, Any]:
    """Types of our own are texts on the wire."""
    if kind is WaitpointToken:
        return {"type": "string"}
    raise NotImplementedError(f"no schema of {kind.__name__}")


def _kinds(answer: Any) -> tuple[Any, ...]:
    """The types an answer may be of."""
    if isinstance(answer, tuple):
        return answer
    return () if answer is None or isinstance(answer, str) else (answer,)


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Null is the same as absent in a request, so every member that may be absent may be null."""
    required = set(schema.get("required", ()))
    members = {
        name: one if name in required or _takes_null(one) else {"anyOf": [one, {"type": "null"}]}
        for name, one in schema.get("properties", {}).items()
    }
    return {**schema, "properties": members}


def _let_backoffs_omit_their_type(components: dict[str, Any]) -> None:
    """A backoff without `type` is exponential, which a discriminator cannot say."""
    del components[ExponentialBackoff.__name__]["required"]
    del components[RetryPolicy.__name__]["properties"]["backoff"]["discriminator"]


def _is_request(schema: dict[str, Any]) -> bool:
    """Only requests are read strictly; a policy is one, too, but is read by the engine."""
    return schema.get("additionalProperties") is False


def _takes_null(schema: dict[str, Any]) -> bool:
    return not schema or {"type": "null"} in schema.get("anyOf", ())


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "responses": dict(sorted(_responses(route, schemas).items())),
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
    }
    if route.body is not None:
        operation["requestBody"] = {
            "required": not route.may_omit_body,
            "content": {"application/json": {"schema": schemas.of(route.body)}},
        }
    if route.scopes is not None:
        operation["security"] = [{"token": []}]
        operation["x-scopes"] = sorted(route.scopes)
    return operation


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    codes: defaultdict[int, dict[str, None]] = defaultdict(dict)
    for fault in faults_of(route):
        if fault.status is not None:
            codes[fault.status][fault.code] = None
    error = {"application/json": {"schema": schemas.of(ErrorBody)}}
    for status, names in codes.items():
        responses[str(status)] = {"description": ", ".join(names), "content": error}
    for status, answer in route.answers.items():
        described: dict[str, Any] = {"description": "done" if status < 300 else "not done"}
        if isinstance(answer, str):
            described["content"] = {answer: {}}
        elif answer is not None:
            described["content"] = {"application/json": {"schema": schemas.of(answer)}}
        responses[str(status)] = described
    return responses


def faults_of(route: Route) -> Iterator[type[FlowFabricError]]:
    yield from route.raises
    if route.scopes is None:
        return
    yield from _EVERYWHERE
    yield from _GUARDED
    if route.body is not None:
        yield from _BODY_FAULTS


def _path_parameters(route: Route) -> Iterator[dict[str, Any]]:
    for name in route.readers:
        yield {"name": name, "in": "path", "required": True, "schema": _path_schema(name)}


def _path_schema(name: str) -> dict[str, Any]:
    if name == "execution_id":
        return {"type": "string", "pattern": EXECUTION_PATTERN}
    if name == "idx":
        return {"type": "string", "pattern": "^([0-9]{1,9}|latest)$"}
    if name in _UUIDS:
        return {"type": "string", "pattern": UUID_PATTERN}
    return {"type": "string", "minLength": 1}


def _query_parameters(route: Route) -> Iterator[dict[str, Any]]:
    if route.query is None:
        return
    schema = msgspec.json.schema(route.query)
    (described,) = schema["$defs"].values()
    for name, one in described.get("properties", {}).items():
        required = name in described.get("required", ())
        yield {"name": name, "in": "query", "required": required, "schema": _plain(one)}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A query has no null: a parameter is there or it is not."""
    others = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    kept = others[0] if len(others) == 1 else schema
    return {name: value for name, value in kept.items() if name != "default" or value is not None}
