"""Schedules: executions submitted at set times."""
