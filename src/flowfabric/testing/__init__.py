"""A fabric for tests: in memory, with workers of its own, and a clock that the test moves."""

from flowfabric.testing.clock import VirtualClock
from flowfabric.testing.crashes import crash_everywhere
from flowfabric.testing.fabric import FabricOf, Kit, open_kit

__all__ = ["FabricOf", "Kit", "VirtualClock", "crash_everywhere", "open_kit"]
