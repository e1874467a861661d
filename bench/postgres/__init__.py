"""Benchmarks on a Postgres server that the bench starts."""

from bench.postgres import executions

__all__ = ["executions"]
