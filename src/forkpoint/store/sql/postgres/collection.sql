-- name: queue_garbage
-- A pointer into this segment is gone: the collector is to look whether somebody still reaches its end. A row that is
-- there already is locked: a collector that has looked before the pointer was gone must not take the row away.
INSERT INTO garbage (tenant, segment, since) VALUES (:tenant, :segment, :now)
ON CONFLICT (tenant, segment) DO UPDATE SET since = garbage.since;

-- name: next_garbage
-- The segment to look at next: of a range of tenants, the newest, since segments stand on older ones.
-- locks: garbage
SELECT tenant, segment FROM garbage WHERE tenant BETWEEN :low AND :high ORDER BY tenant DESC, segment DESC LIMIT 1;

-- name: all_garbage
-- Every segment that the collector will look at.
SELECT tenant, segment FROM garbage WHERE tenant BETWEEN :low AND :high;

-- name: delete_garbage
-- The collector has looked there.
DELETE FROM garbage WHERE tenant = :tenant AND segment = :segment;

-- name: highest_place
-- How far into a segment a head, a base or an open turn stands.
SELECT greatest(
  (SELECT max(head) FROM conversation
   WHERE tenant = :tenant AND head_segment = CAST(:first AS bigint) >> 32 AND head BETWEEN :first AND :last),
  (SELECT max(base) FROM segment
   WHERE tenant = :tenant AND base_segment = CAST(:first AS bigint) >> 32 AND base BETWEEN :first AND :last),
  (SELECT max(place) FROM pin
   WHERE tenant = :tenant AND place_segment = CAST(:first AS bigint) >> 32 AND place BETWEEN :first AND :last),
  0
) AS place;

-- name: highest_place_of_a_head
-- The same without bases.
SELECT greatest(
  (SELECT max(head) FROM conversation
   WHERE tenant = :tenant AND head_segment = CAST(:first AS bigint) >> 32 AND head BETWEEN :first AND :last),
  (SELECT max(place) FROM pin
   WHERE tenant = :tenant AND place_segment = CAST(:first AS bigint) >> 32 AND place BETWEEN :first AND :last),
  0
) AS place;

-- name: bases_in_segment
-- The segments that stand on a segment, from its end.
SELECT id, base FROM segment
WHERE tenant = :tenant AND base_segment = CAST(:first AS bigint) >> 32 AND base BETWEEN :first AND :last
ORDER BY base DESC;

-- name: base_of_segment
-- Where a segment begins. No row: it is gone.
SELECT base FROM segment WHERE tenant = :tenant AND id = :id;

-- name: measure_events
-- What stands in a stretch of a segment.
SELECT count(*) AS events, CAST(coalesce(sum(octet_length(payload)), 0) AS bigint) AS bytes
FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295;

-- name: last_events
-- The last events of a stretch, from its end: the collector works from there, so that a prefix always stays whole.
SELECT segment << 32 | ordinal AS id, coalesce(octet_length(payload), 0) AS bytes
FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295
ORDER BY ordinal DESC LIMIT :limit;

-- name: delete_events
-- Refused by the foreign keys if a head, a base or an open turn stands there.
DELETE FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295;

-- name: delete_segment
-- Nothing is left of it.
DELETE FROM segment WHERE tenant = :tenant AND id = :id;

-- name: turns_in_stretch
-- Committed turns that began and ended in a stretch at the end of a segment.
SELECT count(*) AS turns FROM turn
WHERE tenant = :tenant AND "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after;

-- name: delete_turns
-- Their events are gone, and what they cost was written off with their conversation.
DELETE FROM turn
WHERE tenant = :tenant AND "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after
RETURNING id, conversation, record;

-- name: pin
-- An open turn stands elsewhere than at the head of its conversation.
INSERT INTO pin (tenant, turn, place) VALUES (:tenant, :turn, :place);

-- name: unpin
-- The turn is over.
DELETE FROM pin WHERE tenant = :tenant AND turn = :turn RETURNING place;

-- name: owe
-- This transaction removes text, which is in dead rows until they are vacuumed.
UPDATE meta SET removals = removals + 1;

-- name: owed
-- How often text was removed, how far dead rows are known to be free of it, whether pages may have erased text, and how
-- many processes are gone for good.
SELECT EXISTS (SELECT 1 FROM import) AS imports, removals, cleared, compacted < erasures AS erased, (
  SELECT count(*) FROM holder
  WHERE seen < :before
    AND NOT EXISTS (
      SELECT 1 FROM turn WHERE turn.holder = holder.id AND turn.outcome IN ('running', 'awaiting_approval')
    )
) AS gone
FROM meta;

-- name: clear
-- Dead rows were vacuumed after so many removals.
UPDATE meta SET cleared = greatest(cleared, :removals);

-- name: old_drafts
-- Conversations that never had a committed turn, have none open, and were left alone; but for families that are held.
SELECT tenant, id FROM conversation
WHERE draft = 1 AND open_turn IS NULL AND updated < :before AND tenant BETWEEN :low AND :high
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.tenant = conversation.tenant AND hold.family = conversation.family);

-- name: old_draft
-- Whether a conversation still is such a draft.
-- locks: conversation
SELECT 1 FROM conversation
WHERE tenant = :tenant AND id = :id AND draft = 1 AND open_turn IS NULL AND updated < :before;

-- name: old_responses
-- Conversations that the Responses API made by itself, that nobody named, and that were left alone; but for families
-- that are held. It goes from tenant to tenant in the index, and reads of each only what is old.
-- The newest turn must be one of the Responses API: only what was given to such a turn has an `echo`. No text in it looks
-- like that key, since a quotation mark in a text has a backslash before it.
WITH RECURSIVE one (tenant) AS (
  SELECT min(tenant) FROM tag WHERE tenant BETWEEN :low AND :high
  UNION ALL
  SELECT (SELECT min(tag.tenant) FROM tag WHERE tag.tenant > one.tenant AND tag.tenant <= :high)
  FROM one WHERE one.tenant IS NOT NULL
)
SELECT conversation.tenant, conversation.id
FROM one
JOIN tag
  ON tag.tenant = one.tenant AND tag.key = 'responses' AND tag.value = 'unnamed' AND tag.used < :before
JOIN conversation ON conversation.tenant = tag.tenant AND conversation.id = tag.conversation
WHERE replace(conversation.name, '-', '') = encode(conversation.id, 'hex') AND conversation.title IS NULL
  AND conversation.draft = 0 AND conversation.open_turn IS NULL
  AND (
    SELECT strpos(turn.input, '"echo":"') FROM turn
    WHERE turn.tenant = conversation.tenant AND turn.kind = 'turn'
      AND turn."end" BETWEEN conversation.head >> 32 << 32 AND conversation.head
    ORDER BY turn."end" DESC LIMIT 1
  ) > 0
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.tenant = conversation.tenant AND hold.family = conversation.family);

-- name: old_response
-- Whether a conversation still is such a one.
-- locks: conversation
SELECT 1 FROM conversation
WHERE tenant = :tenant AND id = :id AND used < :before AND replace(name, '-', '') = encode(id, 'hex') AND title IS NULL
  AND draft = 0 AND open_turn IS NULL
  AND EXISTS (
    SELECT 1 FROM tag
    WHERE tag.tenant = conversation.tenant AND tag.key = 'responses' AND tag.value = 'unnamed'
      AND tag.conversation = conversation.id
  )
  AND (
    SELECT strpos(turn.input, '"echo":"') FROM turn
    WHERE turn.tenant = conversation.tenant AND turn.kind = 'turn'
      AND turn."end" BETWEEN conversation.head >> 32 << 32 AND conversation.head
    ORDER BY turn."end" DESC LIMIT 1
  ) > 0;

-- name: old_keys
-- Keys whose request nobody will repeat any more.
SELECT tenant, key FROM idempotency
WHERE created < :before AND tenant BETWEEN :low AND :high
  AND NOT EXISTS (
    SELECT 1 FROM turn
    WHERE turn.tenant = idempotency.tenant AND turn.id = idempotency.target
      AND turn.outcome IN ('running', 'awaiting_approval')
  )
LIMIT nullif(CAST(:limit AS bigint), -1);

-- name: delete_key
-- It is free again.
DELETE FROM idempotency WHERE tenant = :tenant AND key = :key;

-- name: old_tries
-- Tries that did not commit, ended long ago, and still have their content. Nothing of a family that is held goes.
-- locks: turn
SELECT turn.id, turn.tenant, turn.conversation, conversation.family
FROM turn
JOIN conversation ON conversation.tenant = turn.tenant AND conversation.id = turn.conversation
WHERE turn.outcome IN ('failed', 'cancelled') AND turn.expired IS NULL
  AND turn.ended < :before AND turn.tenant BETWEEN :low AND :high
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.tenant = conversation.tenant AND hold.family = conversation.family)
LIMIT nullif(CAST(:limit AS bigint), -1);

-- name: expire_try
-- What it was asked and why it ended is gone; how it ended, when, and what it cost stays.
UPDATE turn SET input = NULL, error = NULL, key = NULL, request = NULL, steered = NULL, staged = 0, expired = :now
WHERE tenant = :tenant AND id = :id;

-- name: is_pending
-- Whether something that was deleted may still be on the disk.
SELECT removals > cleared OR EXISTS (SELECT 1 FROM garbage) AS is_pending FROM meta;
