-- name: server_started
-- When the server was started, which tells it from every other one and from its own next start.
SELECT pg_postmaster_start_time()::text AS server;

-- name: end_session
-- Ends the session that has a transaction still open, if it does. No row: that transaction is over.
SELECT pg_terminate_backend(pid) AS ended FROM pg_stat_activity WHERE pid = :pid AND xact_start = :begun::timestamptz;

-- name: read_standbys
-- Whether a standby must confirm a commit.
SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('synchronous_commit') NOT IN ('off', 'local')
  AS confirm;

-- name: join_writers
-- Waits until nobody has stopped all writers: what is read afterwards is as they have left it.
LOCK TABLE conversation IN ROW SHARE MODE;

-- name: end_idle_session
-- Ends a session, whatever it does. No row: it is gone.
SELECT pg_terminate_backend(pid) AS ended FROM pg_stat_activity WHERE pid = :pid AND backend_start = :begun::timestamptz;

-- name: read_session
-- What tells this session from every other one. It is for statements that find their rows by a key: their plans are made
-- once, and read no table as a whole.
SELECT pid::bigint AS pid, backend_start::text AS begun, pg_postmaster_start_time()::text AS server
FROM pg_stat_activity
CROSS JOIN (
  SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false) OFFSET 0
) AS planned
WHERE pid = pg_backend_pid();

-- name: stop_writers
-- Lets nobody else write conversations until this transaction ends; everybody may read them.
LOCK TABLE conversation IN EXCLUSIVE MODE;

-- name: turns_held
-- The turns that a process holds, as far as the database knows.
SELECT turn.tenant, turn.id, turn.token FROM turn WHERE turn.holder = :holder AND turn.outcome = 'running';

-- name: last_transaction
-- A text that is another one after each transaction that has written, of anybody. It waits for nobody.
SELECT pg_current_snapshot()::text AS snapshot;

-- name: notify
-- Gives everybody who listens a hint. It need not reach the disk: whoever restarts the server ends those who listen.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(:channel, :text);

-- name: standing
-- What the server is, and what stands in the schema in which the tables of a store are, or would be.
SELECT current_setting('server_version_num')::bigint AS version, current_setting('server_encoding') AS encoding,
  pg_is_in_recovery() AS is_standby, current_schema()::text AS schema,
  (SELECT count(*) FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'v', 'm', 'f'))
    AS tables,
  (SELECT count(*) = 3 FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
   WHERE relnamespace = current_schema()::regnamespace AND relname = 'meta'
     AND attname IN ('format', 'writable_from', 'barrier') AND NOT attisdropped) AS has_meta;

-- name: lock_migrations
-- Lets nobody else make or migrate tables until this transaction ends. The number is "Forkpoint" in letters of a phone.
SELECT pg_advisory_xact_lock(367574746800);

-- name: set_partitions
-- How many partitions events have, in tables that this transaction makes.
SELECT set_config('forkpoint.partitions', :partitions, true);

-- name: read_format
-- Which migrations have run, and the oldest format that a program must know to write here.
SELECT format, writable_from FROM meta;

-- name: set_format
-- Migrations have run.
UPDATE meta SET format = :format;
