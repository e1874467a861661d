"""Output of attempts, and the log of events."""
