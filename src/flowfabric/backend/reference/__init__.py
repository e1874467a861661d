"""Every mechanism of a store, as functions over plain tables. SQLite and the in-memory store run
it, and Valkey runs its rare mechanisms.

A store that runs the reference brings two things and hands them to `ReferenceBackend`:

- `Tables` (`tables.py`, `limit_tables.py`): a map per `Table`, range reads in key order, further
  `Order`s of some tables, and the views that `core.views.VIEWS` declares. `write` takes all
  `Changes` of a transaction at once and derives views and orders from the rows. A store may keep
  them as dicts (`memory_tables.py`), or render the declarations into SQL.
- `Runner` (`work.py`): begins a transaction of the store, builds a `Transaction` over its tables
  and its clock, performs one or more batches (`Work`) in it, flushes, commits, and then notifies
  the topics the transaction gathered. A failed commit is rolled back by the store, a failed item
  is undone by the `Transaction`.

A mechanism is a function `start_<name>(tx, items)`: it loads what the whole batch needs and returns
the function that does one item. Decisions are made in `core`; a mechanism reads rows, asks `core`,
and puts rows. Each mechanism lies in one module, named after what it works on.
"""
