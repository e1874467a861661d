"""Executions: submit them, read them, act on them as an operator."""
