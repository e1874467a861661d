"""Benchmarks. Every figure stands beside a baseline of the same run, as a ratio."""
