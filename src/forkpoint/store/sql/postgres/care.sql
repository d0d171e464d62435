-- name: beat
-- This process is alive, and where it is.
INSERT INTO holder (id, seen, host, process, since) VALUES (:id, :now, :host, :process, :since)
ON CONFLICT (id) DO UPDATE SET seen = excluded.seen;

-- name: leave
-- This process is going: turns that it still holds are interrupted from now on.
DELETE FROM holder WHERE id = :id;

-- name: read_holders
-- All processes that said they hold turns.
SELECT id, seen FROM holder;

-- name: forget_holders
-- Processes that are gone and hold nothing.
DELETE FROM holder
WHERE seen < :before
  AND NOT EXISTS (
    SELECT 1 FROM turn WHERE turn.outcome IN ('running', 'awaiting_approval') AND turn.holder = holder.id
  );

-- name: raise_barrier
-- A durable commit that settles what a failed COMMIT before it left behind: once this one is on disk, whatever can be
-- read is there for good, and what cannot be read never comes back. It writes into the log alone and locks no row, so
-- that no barrier waits for another. The UPDATE changes nothing: it lets a server refuse that only reads.
WITH writing AS (UPDATE meta SET barrier = barrier WHERE false)
SELECT pg_logical_emit_message(true, 'forkpoint', 'barrier');

-- name: find_key
-- What an idempotency key was used for.
-- after: lock_key
SELECT operation, subject, target, request FROM idempotency WHERE tenant = :tenant AND key = :key;

-- name: lock_key
-- Whoever writes waits here until nobody else is about to use the key: then it hears what the key was used for, and not that
-- somebody is busy.
SELECT pg_advisory_xact_lock(hashtextextended(:tenant || ' key ' || :key, 0));

-- name: insert_key
-- An idempotency key is taken.
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
VALUES (:tenant, :key, :operation, :subject, :target, :request, :now);

-- name: retake_key
-- A turn that had ended is resumed, and its key is taken again.
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
SELECT tenant, key, 'turn', conversation, id, request, :now::bigint FROM turn WHERE tenant = :tenant AND id = :turn;

-- name: free_key
-- Its turn did not commit, or what it made is deleted: the key may be used again. A rewind or a keep stays done, though
-- the branch that it set aside be deleted; and a message that was left for a turn stays left, though the turn failed.
DELETE FROM idempotency
WHERE tenant = :tenant AND target = :target AND operation NOT IN ('rewind', 'keep', 'steer');

-- name: take_over_keys
-- A retry answers the requests of the tries before it too, if it has their input, and as far as nobody has used their
-- keys since.
WITH RECURSIVE tried (id, key, request, retry_of, number) AS (
  SELECT id, key, request, retry_of, 1 FROM turn
  WHERE tenant = :tenant AND id = :retry_of AND conversation = :subject AND input IS NOT DISTINCT FROM :input::text
  UNION ALL
  SELECT turn.id, turn.key, turn.request, turn.retry_of, number + 1
  FROM tried JOIN turn ON turn.tenant = :tenant AND turn.id = tried.retry_of
  WHERE turn.conversation = :subject AND turn.input IS NOT DISTINCT FROM :input::text AND number < 100
)
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
SELECT :tenant, key, 'turn', :subject::bytea, :target::bytea, request, :now::bigint FROM tried
WHERE key IS NOT NULL AND request IS NOT NULL
ON CONFLICT DO NOTHING;

-- name: free_keys_of_a_conversation
-- The conversation is deleted, and nobody can be given its turns any more.
DELETE FROM idempotency WHERE tenant = :tenant AND subject = :id AND operation = 'turn';

-- name: free_keys_of_steers
-- The same for the messages that were left for its turns.
DELETE FROM idempotency WHERE tenant = :tenant AND subject = :id AND operation = 'steer';

-- name: all_segments
-- The segments that verify looks at, with how far each one goes.
SELECT id, family, base, base_digest,
  (SELECT max(event.ordinal) FROM event WHERE event.tenant = :tenant AND event.segment = segment.id) AS last
FROM segment
WHERE tenant = :tenant
  AND NOT EXISTS (SELECT 1 FROM import_segment WHERE import_segment.tenant = :tenant AND import_segment.segment = segment.id)
ORDER BY id;

-- name: read_segment
-- One segment's base.
SELECT id, family, base, base_digest FROM segment WHERE tenant = :tenant AND id = :id;
