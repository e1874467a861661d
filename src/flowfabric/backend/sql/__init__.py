"""What stores that keep the reference's tables in SQL share: layouts, statements, thread queues.

Statements are written once, in the dialect of SQLite; a store with another one translates them.
"""
