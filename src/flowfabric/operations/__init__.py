"""Every operation of FlowFabric, declared once, in the module of its noun.

A declaration is a method without a body. From it come the route of a server, the call of a client,
the methods of `fabric.admin` and `fabric.sync.admin`, the OpenAPI document and the reference page.
This package imports neither engine, server nor client.
"""
