"""The parameters of a function as a payload: encoded by the caller, decoded by the worker."""

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import Parameter
from types import GenericAlias
from typing import Any, Final, get_type_hints

import msgspec

from flowfabric.errors import ConfigError
from flowfabric.worker import codecs
from flowfabric.worker.codecs import JSON, RAW, REFERRING, Undecodable, Unencodable

_BY_NAME: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class UpstreamValue(msgspec.Struct, frozen=True):
    """Stands among the arguments for the result of an upstream member, by its edge's name."""

    name: str


class Signature:
    """The parameters of a function, but for the leading ones that the worker itself provides."""

    def __init__(self, function: Callable[..., Any], provided: int = 0) -> None:
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        self.parameters = parameters[provided:]
        self._names = [one.name for one in self.parameters]
        # Positional-only parameters travel by name all the same; the call restores their places.
        self._binding = inspect.Signature(
            [one.replace(annotation=Parameter.empty) for one in self.parameters]
        )
        self._is_simple = all(one.kind in _BY_NAME for one in self.parameters)
        self._is_positional = all(one.kind is _BY_NAME[0] for one in self.parameters)

    @cached_property
    def hints(self) -> Mapping[str, Any]:
        """Annotations as types. Resolved late: they may name what is defined further down."""
        try:
            return get_type_hints(self._function)
        except NameError as fault:
            name = self._function.__qualname__
            raise ConfigError(f"task.{name}: an annotation cannot be resolved: {fault}") from fault

    def takes(self, name: str) -> bool:
        return name in self._names

    @property
    def result_type(self) -> Any:
        return self.hints.get("return", Any)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, str]:
        """The payload of a call and its encoding: an object by parameter names, or the only bytes
        themselves."""
        named = self._named(args, kwargs)
        if self._is_raw and len(named) == 1:
            (value,) = named.values()
            if isinstance(value, bytes | bytearray | memoryview):
                return bytes(value), RAW
        if any(map(_refers, named.values())):
            tagged = {name: _with_references(value) for name, value in named.items()}
            return self._json(tagged), REFERRING
        return self._json(named), JSON

    def _json(self, named: dict[str, Any]) -> bytes:
        try:
            return codecs.to_json(named)
        except Unencodable:
            for name, value in named.items():
                try:
                    codecs.to_json(value)
                except Unencodable as fault:
                    place = f"task.{self._function.__name__}: argument {name}"
                    raise Unencodable(f"{place}: {fault}") from fault
            raise

    def decode(
        self, body: bytes, encoding: str, upstreams: Mapping[str, object] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arguments for the function, checked against its annotations."""
        if self._is_raw and encoding in ("", RAW):
            return [body], {}
        if encoding == REFERRING:
            plain = _without_references(codecs.from_json(body), upstreams or {})
            value = codecs.convert(plain, self._struct)
        elif body.lstrip()[:1] == b"[":
            value = codecs.convert(self._placed(codecs.from_json(body)), self._struct)
        else:
            # Without a payload the task is called without arguments.
            value = codecs.read(self._decoder, body or b"{}")
        return self._arguments(value)

    def _placed(self, items: list[Any]) -> Mapping[str, Any]:
        """A list of arguments by their names."""
        try:
            return self._binding.bind(*items).arguments
        except TypeError as fault:
            raise Undecodable(str(fault)) from None

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self._is_simple and not args and kwargs.keys() == set(self._names):
            return dict(kwargs)
        if self._is_positional and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        try:
            bound = self._binding.bind(*args, **kwargs)
        except TypeError as fault:
            raise ConfigError(f"task.{self._function.__name__}: {fault}") from None
        return bound.arguments

    def _arguments(self, value: Any) -> tuple[list[Any], dict[str, Any]]:
        if self._is_positional:
            return [getattr(value, name) for name in self._names], {}
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for one in self.parameters:
            given = getattr(value, one.name)
            match one.kind:
                case Parameter.VAR_POSITIONAL:
                    args += given
                case Parameter.VAR_KEYWORD:
                    kwargs |= given
                case Parameter.KEYWORD_ONLY:
                    kwargs[one.name] = given
                case _:
                    args.append(given)
        return args, kwargs

    @cached_property
    def _is_raw(self) -> bool:
        """Whether the only parameter is bytes, which then are the payload."""
        if len(self.parameters) != 1 or not self._is_simple:
            return False
        return self.hints.get(self.parameters[0].name) is bytes

    @property
    def struct(self) -> type[msgspec.Struct] | None:
        """The type of a payload; None when the payload is bytes."""
        return None if self._is_raw else self._struct

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        fields = [self._field(one) for one in self.parameters]
        name = self._function.__name__.strip("<>")
        try:
            struct = msgspec.defstruct(
                f"{name}_payload", fields, kw_only=True, forbid_unknown_fields=True
            )
            # A decoder looks at every type, so that one it cannot read is found here.
            codecs.decoder_of(struct)
        except TypeError as fault:
            raise ConfigError(f"task.{name}: {fault}") from fault
        return struct

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return codecs.decoder_of(self._struct)

    def _field(self, one: Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
        hint = self.hints.get(one.name, Any)
        if one.kind is Parameter.VAR_POSITIONAL:
            return one.name, GenericAlias(list, (hint,)), msgspec.field(default_factory=list)
        if one.kind is Parameter.VAR_KEYWORD:
            return one.name, GenericAlias(dict, (str, hint)), msgspec.field(default_factory=dict)
        if one.default is Parameter.empty:
            return one.name, hint
        return one.name, hint, msgspec.field(default_factory=lambda: one.default)


def _refers(value: object) -> bool:
    if isinstance(value, UpstreamValue):
        return True
    if isinstance(value, Mapping):
        return any(map(_refers, value.values()))
    return isinstance(value, list | tuple) and any(map(_refers, value))


def _with_references(value: object) -> object:
    """The value as a one-entry object that says what it is: a literal, a reference, or what holds
    references somewhere in it."""
    if isinstance(value, UpstreamValue):
        return {"upstream": value.name}
    if not _refers(value):
        return {"value": value}
    if isinstance(value, Mapping):
        return {"object": {name: _with_references(one) for name, one in value.items()}}
    assert isinstance(value, list | tuple)
    return {"list": [_with_references(one) for one in value]}


def _without_references(
    named: Mapping[str, Any], upstreams: Mapping[str, object]
) -> dict[str, object]:
    if not isinstance(named, Mapping):
        raise Undecodable(f"expected an object, got {type(named).__name__}")
    return {name: _resolved(one, upstreams) for name, one in named.items()}


def _resolved(one: Any, upstreams: Mapping[str, object]) -> object:
    match one:
        case {"value": value}:
            return value
        case {"list": list(items)}:
            return [_resolved(item, upstreams) for item in items]
        case {"object": dict(items)}:
            return _without_references(items, upstreams)
        case {"upstream": name} if name in upstreams:
            return upstreams[name]
        case {"upstream": name}:
            raise Undecodable(f"upstream {name!r} has no result")
        case _:
            raise Undecodable(f"expected a value or a reference, got {one!r}")
