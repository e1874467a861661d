"""An embedded fabric needs none of the extras, its admin included."""

import subprocess
import sys

PROGRAM = """
import sys

# What the extras `http`, `server` and `cli` install.
for name in ("httpx", "httptools", "uvloop", "typer", "rich"):
    sys.modules[name] = None

import asyncio
from flowfabric import FlowFabric
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import Tail


async def main():
    async with FlowFabric("memory://") as fabric:
        admin = fabric.admin
        made = await admin.submit(Submission(kind="k", input=b"in"))
        own = made.execution_id
        assert await admin.state(own) == "waiting"
        assert await admin.input(own) == b"in"
        assert await admin.result(own) is None
        assert (await admin.read_context(own)).execution_kind == "k"
        assert (await admin.tail_stream(own, 0, Tail(block_ms=1))).frames == ()
        begin = (await admin.read_events()).next_cursor
        assert (await admin.cancel(own, "enough")).public_state == "cancelled"
        assert (await admin.wait_for_terminal(own)).state == "cancelled"
        assert begin != (await admin.read_events()).next_cursor


asyncio.run(main())
with FlowFabric("memory://").sync as blocking:
    assert blocking.admin.partitions().num_flow_partitions == 256
over_http = ("flowfabric.server", "flowfabric.client")
loaded = {name for name in sys.modules if name.startswith(over_http)}
assert loaded <= {"flowfabric.client", "flowfabric.client.addresses"}, loaded
"""


def test_the_admin_of_an_embedded_fabric_needs_no_extra() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
