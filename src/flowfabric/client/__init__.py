"""The declared operations over HTTP."""
