"""Run every example, one after the other: `python -m examples [store url]`.

FF_EXAMPLES_ONLY=agent,race chooses some. Ends with 0 when all came to their outcome, 1 when one did
not, 2 when something that an example needs is missing.
"""

import asyncio
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path

from flowfabric import UnsupportedStore

DONE, FAILED, MISSING = 0, 1, 2
SHARED = ("__init__", "__main__", "following")


def chosen() -> list[str]:
    """The examples that are asked for, all of them by default."""
    found = sorted(one.stem for one in Path(__file__).parent.glob("*.py") if one.stem not in SHARED)
    only = [name for name in os.environ.get("FF_EXAMPLES_ONLY", "").split(",") if name]
    for name in only:
        if name not in found:
            print(f"no example {name!r}; there are {', '.join(found)}", file=sys.stderr)
            raise SystemExit(MISSING)
    return only or found


def run(name: str, urls: list[str]) -> int:
    print(f"---- {name}")
    try:
        asyncio.run(import_module(f"examples.{name}").main(*urls))
    except ModuleNotFoundError as fault:
        print(f"left out: needs the package {fault.name}")
        return MISSING
    except UnsupportedStore as fault:
        print(f"left out: {fault.detail}")
        return MISSING
    except Exception:
        traceback.print_exc()
        return FAILED
    return DONE


def main(urls: list[str]) -> int:
    ends = [run(name, urls) for name in chosen()]
    print(f"---- {ends.count(DONE)} of {len(ends)} came to their outcome")
    return FAILED if FAILED in ends else max(ends)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
