"""The store on PostgreSQL: one database, any number of processes. Imported only when such a store is opened."""
