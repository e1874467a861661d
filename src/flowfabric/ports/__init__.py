"""What programs need of FlowFabric, wherever it runs: the worker's port and the submitter's port.

Each has two adapters, the engine in this process and a server over HTTP; a program knows neither.
"""
