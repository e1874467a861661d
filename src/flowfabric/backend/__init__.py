"""Stores. Each offers the same mechanisms (`base`); nothing but `flowfabric.app` names one."""
