-- name: read_setting
-- What a setting is, for this role in this database.
SELECT current_setting(:name, true);

-- name: count_synchronous_standbys
-- How many standbys are connected that commits wait for.
SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum');

-- name: is_standby
-- Whether the server follows another one.
SELECT pg_is_in_recovery();

-- name: backend_pid
-- The number of the session at the server: a pooler tells its clients another.
SELECT pg_backend_pid();

-- name: has_tables
-- Whether the tables of a store are made.
SELECT to_regclass('conversation') IS NOT NULL AND to_regclass('meta') IS NOT NULL AS has_tables;

-- name: examine_tables
-- The format of a store, how many conversations it has, about, and how large its database is.
SELECT meta.format, pg_database_size(current_database()) AS bytes,
  CASE
    WHEN pg_class.reltuples BETWEEN 0 AND 10000 OR pg_class.reltuples < 0
    THEN (SELECT count(*) FROM (SELECT 1 FROM conversation WHERE draft = 0 LIMIT 100000) AS few)
    ELSE pg_class.reltuples
  END AS conversations
FROM meta CROSS JOIN pg_class WHERE pg_class.oid = 'conversation'::regclass;
