"""The app object and what it hands out: tasks, runs, workers."""
