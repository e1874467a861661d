"""What travels over HTTP: bodies as they are sent, answers as they are given, one module per noun.

The server decodes requests and encodes answers with these types, the client does the reverse, and
the OpenAPI document is made from them. Nothing here knows either side.
"""
