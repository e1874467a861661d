"""`make run`: real work on a SQLite file, with real worker processes, one of which is killed."""
