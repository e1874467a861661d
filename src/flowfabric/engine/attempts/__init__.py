"""Attempts: claim work, keep its lease, finish it, record its steps."""
