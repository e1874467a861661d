"""One program for each queue: it submits no-op tasks, or it is the worker that drains them.

They run under the interpreter of that queue's own environment, so they import nothing of FlowFabric
but this package.
"""
