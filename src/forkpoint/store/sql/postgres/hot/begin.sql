-- name: begin_at_once
-- Begins a turn in one statement: the lock, the turn. No row: it is no plain case, and nothing is written but the
-- heartbeat. The last two columns are the server's clock, and what lets the server answer before the turn is on disk.
WITH /* begin_key */
  taken AS (
    UPDATE conversation
    SET open_turn = :turn, used = CASE WHEN :now::bigint - used >= :minute::bigint THEN :now::bigint ELSE used END
    WHERE conversation.tenant = :tenant AND conversation.id = :conversation AND conversation.open_turn IS NULL
      AND (:revision::bigint IS NULL OR conversation.revision = :revision::bigint)
      AND (:name::text IS NULL OR conversation.name = :name::text) /* begin_key_guard */
      AND NOT EXISTS (
        SELECT 1 FROM budget WHERE budget.tenant = conversation.tenant AND budget.family = conversation.family
      )
    RETURNING conversation.tenant, conversation.id, conversation.family, conversation.revision, conversation.open_segment,
      conversation.draft, conversation.records, conversation.record_digest, conversation.head, conversation.head_digest,
      conversation.head_turn, conversation.head_totals, conversation.head_state_of, conversation.head_state,
      conversation.head_open_calls
  ),
  begun AS (
    INSERT INTO turn (
      id, tenant, conversation, kind, outcome, base, holder, token, input, key, request, usage, totals, state_of,
      open_calls, started, "by", budgeted, ran, since, accepted
    )
    SELECT :turn::bytea, taken.tenant, taken.id, 'turn', 'running', taken.head, :holder::bytea, :token::bytea, :input::text,
      :key::text, :request::bytea, '{}', taken.head_totals, taken.head_state_of, '{}', :now::bigint, :by::text, 0, 0,
      :now::bigint, :accepted::bigint
    FROM taken
  ) /* parts */
SELECT taken.id, taken.family, taken.revision, taken.open_segment, taken.draft, taken.records, taken.record_digest,
  taken.head, taken.head_digest, taken.head_turn, taken.head_totals, taken.head_state_of, taken.head_state,
  taken.head_open_calls, meta.erasures,
  (SELECT turn.state FROM turn WHERE turn.tenant = taken.tenant AND turn.id = taken.head_state_of) AS folded,
  floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,
  CASE WHEN :accepted::bigint = 0 THEN set_config('synchronous_commit', 'off', true) END AS synced
FROM taken CROSS JOIN meta;

-- name: begin_beat
-- A part of `begin_at_once`, if this process has not said for a while that it is alive.
, beaten AS (
  INSERT INTO holder (id, seen, host, process, since)
  VALUES (:holder::bytea, :now::bigint, :host::text, :process::bigint, :since::bigint)
  ON CONFLICT (id) DO UPDATE SET seen = excluded.seen
);

-- name: begin_key
-- Parts of `begin_at_once`, if the turn has an idempotency key. Whoever uses the same key waits at the same lock.
  locked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended(:tenant || ' key ' || :key::text, 0))
  ),
  is_free AS MATERIALIZED (
    SELECT counted.locks FROM (SELECT count(*) AS locks FROM locked) AS counted
    WHERE NOT EXISTS (SELECT 1 FROM idempotency WHERE idempotency.tenant = :tenant AND idempotency.key = :key::text)
  ),;

-- name: begin_key_guard
-- The key is nobody else's.
AND (SELECT is_free.locks FROM is_free) = 1;

-- name: begin_key_row
-- Whose it is now.
, keyed AS (
  INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
  SELECT taken.tenant, :key::text, 'turn', taken.id, :turn::bytea, :request::bytea, :now::bigint FROM taken
);
