"""Hot writes: what each turn writes, in one statement and one round trip.

`forkpoint.store.tables.quick` says what they are for. A statement is a whole transaction: nothing is sent before it,
and its commit is a part of it. So a process that stops in the middle holds no lock."""
