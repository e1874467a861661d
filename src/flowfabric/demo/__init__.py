"""A sample app: what `flowfabric dev --sample` runs for a newcomer to play with."""
