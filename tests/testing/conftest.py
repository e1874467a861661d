"""The fixtures as a project gets them that installs FlowFabric."""

from flowfabric.testing.plugin import clock, fabric, fabric_of

__all__ = ["clock", "fabric", "fabric_of"]
