"""What runs work: handlers, their context, and the loop that claims, runs, renews and finishes."""
