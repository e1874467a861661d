"""What a type checker knows of the arguments of nodes: a node may stand for a value of its type."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar

from flowfabric.fabric.nodes import Choice, Node
from flowfabric.fabric.options import Options
from flowfabric.worker.children import BoundCall

X_contra = TypeVar("X_contra", contravariant=True)
Y_contra = TypeVar("Y_contra", contravariant=True)
T = TypeVar("T")
R = TypeVar("R")


class TakesOne(Protocol[X_contra, R]):
    """A task of one argument; it may have others that can be left out."""

    def bind(self, one: X_contra, /) -> BoundCall[R]: ...


class TakesTwo(Protocol[X_contra, Y_contra, R]):
    def bind(self, one: X_contra, two: Y_contra, /) -> BoundCall[R]: ...


AnyNode: TypeAlias = Node[Any] | Choice[Any]
Input: TypeAlias = T | Node[T] | Choice[T]
Several: TypeAlias = Sequence[T | Node[T] | Choice[T]]
# An argument by name, whose type is known to the worker only.
Unchecked: TypeAlias = AnyNode | Sequence[AnyNode] | Mapping[str, Any]


class NodeOptions(TypedDict, total=False):
    after: Sequence[AnyNode]
    data: Mapping[str, AnyNode] | None
    policy: Options | None
