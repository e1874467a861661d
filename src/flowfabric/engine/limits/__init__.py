"""Limits: budgets, quotas, and whether they admit an execution."""
