-- name: beat
-- This process is alive, and where it is.
INSERT INTO holder (id, seen, host, process, since) VALUES (:id, :now, :host, :process, :since)
ON CONFLICT (id) DO UPDATE SET seen = :now;

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
    SELECT 1 FROM conversation CROSS JOIN turn ON turn.id = conversation.open_turn
    WHERE conversation.open_turn IS NOT NULL AND turn.holder = holder.id
  );

-- name: raise_barrier
-- A write whose durable commit settles what a failed COMMIT before it left behind: once this one is on disk,
-- whatever can be read is there for good, and what cannot be read never comes back.
UPDATE meta SET barrier = barrier + 1;

-- name: find_key
-- What an idempotency key was used for.
SELECT operation, subject, target, request FROM idempotency WHERE tenant = :tenant AND key = :key;

-- name: insert_key
-- An idempotency key is taken.
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
VALUES (:tenant, :key, :operation, :subject, :target, :request, :now);

-- name: retake_key
-- A turn that had ended is resumed, and its key is taken again.
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
SELECT tenant, key, 'turn', conversation, id, request, :now FROM turn WHERE tenant = :tenant AND id = :turn;

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
  WHERE id = :retry_of AND tenant = :tenant AND conversation = :subject AND input IS :input
  UNION ALL
  SELECT turn.id, turn.key, turn.request, turn.retry_of, number + 1 FROM tried JOIN turn ON turn.id = tried.retry_of
  WHERE turn.tenant = :tenant AND turn.conversation = :subject AND turn.input IS :input AND number < 100
)
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
SELECT :tenant, key, 'turn', :subject, :target, request, :now FROM tried
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
       (SELECT max(event.id) & 4294967295 FROM event
        WHERE event.id BETWEEN segment.id << 32 AND (segment.id << 32) + 4294967295) AS last
FROM segment WHERE tenant = :tenant AND id NOT IN (SELECT segment FROM import_segment) ORDER BY id;

-- name: read_segment
-- One segment's base.
SELECT id, family, base, base_digest FROM segment WHERE id = :id AND tenant = :tenant;
