"""One program for each engine. They run in the environment of their engine, so they share nothing
but `driving`."""
