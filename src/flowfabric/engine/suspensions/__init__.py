"""Suspensions: wait for signals at waitpoints, and the keys that sign their tokens."""
