"""The mechanisms run over plain tables: what SQLite and the in-memory store have in common."""
