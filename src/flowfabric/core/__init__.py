"""The rules of the engine: pure functions over plain data, without I/O, clock or randomness."""
