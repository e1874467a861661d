"""Benchmarks on a Postgres server that the bench starts."""

from bench.postgres import executions, idle

__all__ = ["executions", "idle"]
