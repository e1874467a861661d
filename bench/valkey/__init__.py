"""The suites on a Valkey server that the bench starts itself, beside what that server can do."""

from bench.valkey import executions, flows, idle, latency, routing, streams, suspension

__all__ = ["executions", "flows", "idle", "latency", "routing", "streams", "suspension"]
