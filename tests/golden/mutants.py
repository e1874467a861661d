"""Small changes of a function, one at a time, and of a constant."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple

from flowfabric.backend.valkey.rendering import Constant

_COMPARED: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_CALCULATED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
}
_COUNTABLE: Final = 10**12


class Mutant(NamedTuple):
    # The changed line and what it became.
    what: str
    code: CodeType


def mutants(function: FunctionType) -> Iterator[Mutant]:
    """Every comparison, connective, calculation and literal of a function, changed alone."""
    source = textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(source)
    places = [*_places(tree)]
    for place in range(len(places)):
        for turn in range(len([*_changes(places[place])])):
            changed = deepcopy(tree)
            node = [*_places(changed)][place]
            _replace(changed, node, [*_changes(node)][turn])
            before, after = ast.unparse(places[place]), ast.unparse([*_changes(node)][turn])
            yield Mutant(f"{before} -> {after}", _compiled(changed, function))


def _places(tree: ast.AST) -> Iterator[ast.expr]:
    """What may be changed, in the order of the text; not what is only told or typed."""
    (function,) = (node for node in ast.iter_child_nodes(tree) if isinstance(node, ast.FunctionDef))
    hidden = {
        id(function.returns),
        *(id(one.annotation) for one in ast.walk(function.args) if isinstance(one, ast.arg)),
    }
    stack: list[ast.AST] = [*reversed([*function.args.defaults, *function.body])]
    while stack:
        node = stack.pop()
        if id(node) in hidden or _is_told(node):
            continue
        if isinstance(node, ast.AnnAssign):
            stack += [one for one in (node.value,) if one]
            continue
        if isinstance(node, ast.expr) and any(True for _ in _changes(node)):
            yield node
        stack += reversed([*ast.iter_child_nodes(node)])


def _is_told(node: ast.AST) -> bool:
    """A docstring, or the text of an error."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Raise | ast.JoinedStr)


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[only]):
            for other in _COMPARED[type(only)]:
                yield ast.Compare(node.left, [other()], node.comparators)
        case ast.BoolOp():
            other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield ast.BoolOp(other_op, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp() if type(node.op) in _CALCULATED:
            yield ast.BinOp(node.left, _CALCULATED[type(node.op)](), node.right)
        case ast.Constant(value=bool() as truth):
            yield ast.Constant(not truth)
        case ast.Constant(value=int() as number):
            yield ast.Constant(number + 1)
        case ast.Constant(value=str() as text):
            # No text stands before all others; this one stands behind them.
            yield ast.Constant(f"{text}!" if text else "~")
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)


def _replace(tree: ast.AST, old: ast.expr, new: ast.expr) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(one is old for one in value):
                setattr(parent, name, [new if one is old else one for one in value])


def _compiled(tree: ast.Module, function: FunctionType) -> CodeType:
    made: dict[str, Any] = {}
    whole = ast.fix_missing_locations(tree)
    exec(compile(whole, "<mutant>", "exec"), function.__globals__, made)
    changed = made[function.__name__]
    assert isinstance(changed, FunctionType)
    return changed.__code__


@contextmanager
def changed(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Every caller of the function gets the mutant."""
    before = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = before


def other_value(value: Constant) -> Constant:
    """Next to it; of a number that is beyond all that is ever counted, twice as much."""
    if isinstance(value, str):
        return f"{value}!"
    return value + 1 if value <= _COUNTABLE else 2 * value
