"""Decisions: from what a caller knows of a record to the plan that changes it."""
