"""`python -m flowfabric.server`: a server from the environment."""

import argparse
import sys
from pathlib import Path

import uvloop

from flowfabric.config import settings_from
from flowfabric.errors import FlowFabricError, UnsupportedStore
from flowfabric.errors.plain import plain
from flowfabric.server.run import serve
from flowfabric.telemetry.logs import write_logs


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flowfabric.server", description=__doc__)
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    chosen = parser.parse_args()
    write_logs()
    try:
        settings = settings_from(file=chosen.config)
        uvloop.run(serve(settings))
    except FlowFabricError as fault:
        problems = fault.details.get("problems")
        lines = problems if isinstance(problems, tuple) else (str(fault),)
        sys.stderr.writelines(f"{plain(str(line))}\n" for line in lines)
        return 2 if isinstance(fault, UnsupportedStore) else 1
    except OSError as fault:
        sys.stderr.write(f"cannot listen: {fault}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
