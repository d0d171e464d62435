-- name: all_tenants
-- Whose conversations a store has.
SELECT DISTINCT tenant FROM conversation UNION SELECT DISTINCT tenant FROM segment ORDER BY tenant;

-- name: export_snapshot
-- What this transaction sees can be read by another session too, as long as it is open, which it may be for long.
SELECT set_config('idle_in_transaction_session_timeout', '0', true) AS limits, pg_export_snapshot() AS snapshot,
  CAST(current_setting('server_version_num') AS int) / 10000 AS version, pg_database_size(current_database()) AS size,
  format
FROM meta;

-- name: is_free
-- Whether there is no store in this database yet; and the server's version.
SELECT to_regclass('meta') IS NULL AS is_free, CAST(current_setting('server_version_num') AS int) / 10000 AS version;

-- name: renew_store_id
-- A restored store is another one than that of the backup: the two go different ways.
UPDATE meta SET store = uuid_send(gen_random_uuid());

-- name: forget_all_holders
-- A restored store: no process that ran turns in the store of the backup runs them here.
DELETE FROM holder;
