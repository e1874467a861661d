"""The command line: parse, call, render. Every command is a few lines over the REST API, or over a
store in this process when `--url` names one."""

import sys


def main() -> None:
    """The program `flowfabric`; without its packages it names the extra to install."""
    try:
        from flowfabric.cli import program
    except ModuleNotFoundError as fault:
        if (fault.name or "").startswith("flowfabric"):
            raise
        sys.stderr.write(
            f"error: the command needs the package {fault.name}: pip install 'flowfabric[cli]'\n"
        )
        raise SystemExit(2) from None
    program.main()
