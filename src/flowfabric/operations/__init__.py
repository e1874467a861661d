"""What can be asked of FlowFabric: every operation, declared once, one module per noun.

A declaration is a method without a body. From it come the route of a server, the call of a client,
the methods of `fabric.admin` and `fabric.sync.admin`, the OpenAPI document and the reference page.
Nothing here knows an engine, a server or a client.
"""
