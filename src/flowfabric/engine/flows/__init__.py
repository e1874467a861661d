"""Flows: graphs of executions, their edges, and what the end of a member changes."""
