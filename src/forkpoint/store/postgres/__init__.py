"""The store on PostgreSQL: one database, any number of processes. Imported only when such a store is opened.

- `address`: what `postgresql://...` says. `schema`: its tables. `store`, `view`, `open_database`: an open store.
- `session/`: connections, what is said over them, and what their errors mean.
- `transactions`: operations of `store/tables/`. `hot/`: the writes of a turn, one statement each.
- `settling`: what became of a write that nobody confirmed. `care/`: vacuum, copies, examination.
"""
