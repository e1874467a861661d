"""`make bench-peers`: no-op tasks drained by one worker process of each queue, on one server."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from bench.peers.driving import Load, Rig, Row, row_of
from bench.peers.known import ON_POSTGRES, OURS, PEERS, Peer
from bench.peers.table import progress, save, table
from bench.postgres.rig import peers_rig
from bench.valkey.rig import rig

STORES: dict[str, tuple[Callable[[], AbstractAsyncContextManager[Rig]], tuple[Peer, ...]]] = {
    "valkey": (rig, PEERS),
    "postgres": (peers_rig, ON_POSTGRES),
}
RESULTS = Path(__file__).parent.parent / "results" / "peers.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers ARGS=", description=__doc__)
    names = [peer.name for _, peers in STORES.values() for peer in peers]
    parser.add_argument("--store", choices=STORES, default="valkey", help="on which server")
    parser.add_argument("--tasks", type=int, default=10_000, help="how many tasks each drains")
    parser.add_argument(
        "--seconds", type=float, default=6, help="each may submit and drain for so long"
    )
    parser.add_argument("--rounds", type=int, default=3, help="all of them take turns")
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="PEER")
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args()


async def main(chosen: argparse.Namespace) -> bool:
    opened, peers = STORES[chosen.store]
    taking_part = [OURS, *(peer for peer in peers if peer.name in chosen.only)]
    found: dict[Peer, list[Row]] = {peer: [] for peer in taking_part}
    async with opened() as on:
        given = {name: str(getattr(chosen, name)) for name in ("tasks", "seconds", "rounds")}
        facts = await on.facts() | given
        for turn in range(1, chosen.rounds + 1):
            for peer, rows in found.items():
                # One that failed would only fail again, after a long wait perhaps.
                if not any(row.fault for row in rows):
                    _log(f"{peer.name}, round {turn} of {chosen.rounds}")
                    rows.append(await row_of(on, peer, Load(chosen.tasks, chosen.seconds)))
                    _log(progress(rows[-1]))
    rows = [_middle(rows) for rows in found.values()]
    print(table(rows, facts))
    save(rows, facts, chosen.json)
    print(f"\nwritten: {chosen.json}")
    return not any(row.fault for row in rows)


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _middle(rows: list[Row]) -> Row:
    """The run in the middle by speed; a fault in any of them is the answer."""
    faults = [row for row in rows if row.fault]
    return faults[0] if faults else sorted(rows, key=lambda row: row.drained)[len(rows) // 2]


def _end(number: int, frame: object) -> None:
    """Told to end, leave the ordinary way: nothing that was started must stay behind."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    logging.getLogger("flowfabric.backend.valkey").setLevel(logging.ERROR)
    sys.exit(0 if asyncio.run(main(arguments())) else 1)
