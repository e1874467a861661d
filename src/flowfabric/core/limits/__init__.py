"""Limits: budgets bound what work may spend, quotas and concurrency keys how it may start.

Exact integer arithmetic, no store and no clock: each function takes what is stored and answers
what is to be stored instead.
"""
