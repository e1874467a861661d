"""The suites on a Valkey server that the bench starts itself, beside what that server can do."""
