"""The app of a command: a FlowFabric object by its name, or what a package declares."""

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from flowfabric.cli.target import fail
from flowfabric.config import StoreUrl
from flowfabric.errors import FlowFabricError

if TYPE_CHECKING:
    from flowfabric.fabric.app import FlowFabric

T = TypeVar("T")


def loaded(target: str) -> "FlowFabric":
    """The fabric of MODULE:APP, or that of all modules of a package, with their tasks."""
    module, is_named, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return _named(target, module, name) if is_named else _found(module)
    except FlowFabricError as fault:
        fail(f"{module}: {fault.detail}")


def named_store(target: str) -> StoreUrl | None:
    """The store that an app names; None when its code fails: its worker reports that, and is
    started again after a change."""
    from flowfabric.fabric.app import FlowFabric

    module, is_named, name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        if is_named:
            found = [getattr(importlib.import_module(module), name, None)]
        else:
            modules = list(_modules(module, importlib.import_module))
            found = [*_objects(modules, FlowFabric).values()]
    except Exception:
        return None
    stores = [one.named_store for one in found if isinstance(one, FlowFabric)]
    return stores[0] if stores else None


def _named(target: str, module: str, name: str) -> "FlowFabric":
    from flowfabric.fabric.app import FlowFabric

    found_there = _imported(module)
    found = getattr(found_there, name, None)
    if not isinstance(found, FlowFabric):
        what = "is no FlowFabric object" if hasattr(found_there, name) else "does not exist"
        others = [*_objects([found_there], FlowFabric)]
        fail(f"{target} {what}" + (f"; did you mean {others[0]}?" if others else ""))
    return found


def _found(package: str) -> "FlowFabric":
    """The only fabric of the package, or a new one, with the tasks that no fabric includes yet."""
    from flowfabric.fabric.app import FlowFabric
    from flowfabric.fabric.tasks import Tasks

    modules = list(_modules(package, _imported))
    fabrics = _objects(modules, FlowFabric)
    tasks = [one for one in _objects(modules, Tasks).values() if not one.is_included]
    if len(fabrics) > 1:
        fail(f"{package} has {len(fabrics)} FlowFabric objects: name one: {', '.join(fabrics)}")
    if not fabrics and not tasks:
        fail(f"{package} has no FlowFabric object and no Tasks")
    fabric = next(iter(fabrics.values()), None) or FlowFabric()
    for one in tasks:
        fabric.include(one)
    return fabric


def _modules(name: str, load: Callable[[str], ModuleType]) -> Iterator[ModuleType]:
    """A module and all those below it. A module `__main__` would run a program."""
    module = load(name)
    yield module
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if found.name != "__main__":
            yield from _modules(f"{name}.{found.name}", load)


def _objects(modules: list[ModuleType], type_: type[T]) -> dict[str, T]:
    """Each object of a type once, by the first name it has."""
    found: dict[int, tuple[str, T]] = {}
    for module in modules:
        for name, one in vars(module).items():
            if isinstance(one, type_):
                found.setdefault(id(one), (f"{module.__name__}:{name}", one))
    return dict(found.values())


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as fault:
        fail(f"there is no module {fault.name}")
    except FlowFabricError as fault:
        fail(f"{module}: {fault.detail}")
    except Exception as fault:
        # Of the traceback only what is the app's own.
        own = [one for one in traceback.extract_tb(fault.__traceback__) if _is_own(one.filename)]
        sys.stderr.write("".join(traceback.format_list(own)))
        sys.stderr.write("".join(traceback.format_exception_only(fault)))
        fail(f"{module} cannot be imported")


def _is_own(filename: str) -> bool:
    return not filename.startswith("<") and filename not in (__file__, importlib.__file__)
