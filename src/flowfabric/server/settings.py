"""Ready-made settings."""

import msgspec

from flowfabric.config import Address, Settings, StoreUrl


def dev(base: Settings | None = None) -> Settings:
    """For trying things out: everything in memory, any free port of this host, no token."""
    return msgspec.structs.replace(
        base or Settings(),
        store=StoreUrl("memory"),
        listen=Address("127.0.0.1", 0),
        tokens=(),
    )
