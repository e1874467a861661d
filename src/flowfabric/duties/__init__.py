"""Background work that only the passing of time causes. Safe to run twice, anywhere."""
