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
    SELECT 1 FROM conversation JOIN turn ON turn.id = conversation.open_turn WHERE turn.holder = holder.id
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
-- Its turn did not commit, or what it made is deleted: the key may be used again. A rewind stays done, though
-- the branch that it set aside be deleted.
DELETE FROM idempotency WHERE tenant = :tenant AND target = :target AND operation <> 'rewind';

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

-- name: families
-- The families of a tenant that have events.
SELECT DISTINCT family FROM segment WHERE tenant = :tenant;

-- name: family_segments
-- The segments of a family, children before their parents.
SELECT id, base FROM segment WHERE family = :family AND tenant = :tenant ORDER BY id DESC;

-- name: family_heads
-- How far into each segment some conversation stands, or an open turn of one, which need not stand at its head.
SELECT place >> 32 AS segment, max(place & 4294967295) AS ordinal
FROM (
  SELECT head AS place FROM conversation WHERE family = :family
  UNION ALL
  SELECT turn.base FROM conversation JOIN turn ON turn.id = conversation.open_turn WHERE conversation.family = :family
)
WHERE place IS NOT NULL GROUP BY place >> 32;

-- name: measure_events
-- What stands in a stretch of a segment.
SELECT count(*) AS events, coalesce(sum(length(CAST(payload AS BLOB))), 0) AS bytes
FROM event WHERE id BETWEEN :first AND :last;

-- name: last_events
-- The last few events of a stretch: the collector works from the end, so that a prefix always stays whole.
SELECT id, coalesce(length(CAST(payload AS BLOB)), 0) AS bytes
FROM event WHERE id BETWEEN :first AND :last ORDER BY id DESC LIMIT :limit;

-- name: delete_events
-- Refused by the foreign keys if a head or a base came to stand there meanwhile.
DELETE FROM event WHERE id BETWEEN :first AND :last;

-- name: delete_segment
-- Nothing is left of it.
DELETE FROM segment WHERE id = :id;

-- name: turns_in_stretch
-- Committed turns that began and ended in a stretch at the end of a segment.
SELECT count(*) AS turns FROM turn
WHERE "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after;

-- name: free_keys_of_turns
-- Nobody can be given these turns any more.
DELETE FROM idempotency
WHERE tenant = :tenant AND target IN (
  SELECT id FROM turn WHERE "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after
);

-- name: delete_turns
-- Their events are gone, and what they cost was written off with their conversation.
DELETE FROM turn
WHERE "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after
RETURNING id, conversation, record;

-- name: old_drafts
-- Conversations that never had a committed turn, have none open, and were left alone.
SELECT id FROM conversation WHERE draft = 1 AND open_turn IS NULL AND updated < :before AND tenant = :tenant;

-- name: count_old_keys
-- Keys whose request nobody will repeat any more.
SELECT count(*) AS keys FROM idempotency
WHERE tenant = :tenant AND created < :before
  AND target NOT IN (SELECT open_turn FROM conversation WHERE tenant = :tenant AND open_turn IS NOT NULL);

-- name: delete_old_keys
-- They are free again.
DELETE FROM idempotency
WHERE tenant = :tenant AND created < :before
  AND target NOT IN (SELECT open_turn FROM conversation WHERE tenant = :tenant AND open_turn IS NOT NULL);

-- name: all_segments
-- The segments that verify looks at, with how far each one goes.
SELECT id, family, base, base_digest,
       (SELECT max(event.id) & 4294967295 FROM event
        WHERE event.id BETWEEN segment.id << 32 AND (segment.id << 32) + 4294967295) AS last
FROM segment WHERE tenant = :tenant ORDER BY id;

-- name: read_segment
-- One segment's base.
SELECT id, family, base, base_digest FROM segment WHERE id = :id AND tenant = :tenant;
