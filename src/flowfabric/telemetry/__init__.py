"""Logs, metrics and traces behind one observer; nothing above needs a library for them."""
