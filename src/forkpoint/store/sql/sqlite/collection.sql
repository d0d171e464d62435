-- name: queue_garbage
-- A pointer into this segment is gone: the collector is to look whether somebody still reaches its end.
INSERT INTO garbage (tenant, segment, since) VALUES (:tenant, :segment, :now) ON CONFLICT DO NOTHING;

-- name: next_garbage
-- The segment to look at next: of a range of tenants, the newest, since segments stand on older ones.
SELECT tenant, segment FROM garbage WHERE tenant BETWEEN :low AND :high ORDER BY tenant DESC, segment DESC LIMIT 1;

-- name: all_garbage
-- Every segment that the collector will look at.
SELECT tenant, segment FROM garbage WHERE tenant BETWEEN :low AND :high;

-- name: delete_garbage
-- The collector has looked there.
DELETE FROM garbage WHERE tenant = :tenant AND segment = :segment;

-- name: highest_place
-- How far into a segment a head, a base or an open turn stands. Each is the end of one range of an index.
SELECT max(
  coalesce((SELECT max(head) FROM conversation WHERE head BETWEEN :first AND :last), 0),
  coalesce((SELECT max(base) FROM segment WHERE base BETWEEN :first AND :last), 0),
  coalesce((SELECT max(place) FROM pin WHERE place BETWEEN :first AND :last), 0)
) AS place;

-- name: highest_place_of_a_head
-- The same without bases.
SELECT max(
  coalesce((SELECT max(head) FROM conversation WHERE head BETWEEN :first AND :last), 0),
  coalesce((SELECT max(place) FROM pin WHERE place BETWEEN :first AND :last), 0)
) AS place;

-- name: bases_in_segment
-- The segments that stand on a segment, from its end.
SELECT id, base FROM segment WHERE base BETWEEN :first AND :last ORDER BY base DESC;

-- name: base_of_segment
-- Where a segment begins. No row: it is gone.
SELECT base FROM segment WHERE id = :id;

-- name: measure_events
-- What stands in a stretch of a segment.
SELECT count(*) AS events, coalesce(sum(length(CAST(payload AS BLOB))), 0) AS bytes
FROM event WHERE id BETWEEN :first AND :last;

-- name: last_events
-- The last events of a stretch, from its end: the collector works from there, so that a prefix always stays whole.
SELECT id, coalesce(length(CAST(payload AS BLOB)), 0) AS bytes
FROM event WHERE id BETWEEN :first AND :last ORDER BY id DESC LIMIT :limit;

-- name: delete_events
-- Refused by the foreign keys if a head, a base or an open turn stands there.
DELETE FROM event WHERE id BETWEEN :first AND :last;

-- name: delete_segment
-- Nothing is left of it.
DELETE FROM segment WHERE id = :id;

-- name: turns_in_stretch
-- Committed turns that began and ended in a stretch at the end of a segment.
SELECT count(*) AS turns FROM turn
WHERE "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after;

-- name: delete_turns
-- Their events are gone, and what they cost was written off with their conversation.
DELETE FROM turn
WHERE "end" BETWEEN :first AND :last AND coalesce(base & 4294967295, 0) >= :after
RETURNING id, conversation, record;

-- name: pin
-- An open turn stands elsewhere than at the head of its conversation.
INSERT INTO pin (turn, place) VALUES (:turn, :place);

-- name: unpin
-- The turn is over.
DELETE FROM pin WHERE turn = :turn RETURNING place;

-- name: owe
-- This transaction removes text, which is in the log until the log is emptied.
UPDATE meta SET removals = removals + 1;

-- name: owed
-- How often text was removed, how far the log is known to be free of it, whether pages may have erased text, and how
-- many processes are gone for good.
SELECT EXISTS (SELECT 1 FROM import) AS imports, removals, cleared, compacted < erasures AS erased, (
  SELECT count(*) FROM holder
  WHERE seen < :before
    AND NOT EXISTS (
      SELECT 1 FROM conversation CROSS JOIN turn ON turn.id = conversation.open_turn
      WHERE conversation.open_turn IS NOT NULL AND turn.holder = holder.id
    )
) AS gone
FROM meta;

-- name: clear
-- The log was emptied after so many removals.
UPDATE meta SET cleared = max(cleared, :removals);

-- name: old_drafts
-- Conversations that never had a committed turn, have none open, and were left alone; but for families that are held.
SELECT tenant, id FROM conversation INDEXED BY conversation_draft
WHERE draft = 1 AND open_turn IS NULL AND updated < :before AND tenant BETWEEN :low AND :high
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.tenant = conversation.tenant AND hold.family = conversation.family);

-- name: old_draft
-- Whether a conversation still is such a draft.
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
CROSS JOIN tag INDEXED BY tag_used
  ON tag.tenant = one.tenant AND tag.key = 'responses' AND tag.value = 'unnamed' AND tag.used < :before
CROSS JOIN conversation ON conversation.tenant = tag.tenant AND conversation.id = tag.conversation
WHERE replace(conversation.name, '-', '') = lower(hex(conversation.id)) AND conversation.title IS NULL
  AND conversation.draft = 0 AND conversation.open_turn IS NULL
  AND (
    SELECT instr(turn.input, '"echo":"') FROM turn
    WHERE turn."end" BETWEEN conversation.head >> 32 << 32 AND conversation.head AND turn.kind = 'turn'
    ORDER BY turn."end" DESC LIMIT 1
  ) > 0
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.tenant = conversation.tenant AND hold.family = conversation.family);

-- name: old_response
-- Whether a conversation still is such a one.
SELECT 1 FROM conversation
WHERE tenant = :tenant AND id = :id AND used < :before AND replace(name, '-', '') = lower(hex(id)) AND title IS NULL
  AND draft = 0 AND open_turn IS NULL
  AND EXISTS (
    SELECT 1 FROM tag
    WHERE tag.tenant = conversation.tenant AND tag.key = 'responses' AND tag.value = 'unnamed'
      AND tag.conversation = conversation.id
  )
  AND (
    SELECT instr(turn.input, '"echo":"') FROM turn
    WHERE turn."end" BETWEEN conversation.head >> 32 << 32 AND conversation.head AND turn.kind = 'turn'
    ORDER BY turn."end" DESC LIMIT 1
  ) > 0;

-- name: old_keys
-- Keys whose request nobody will repeat any more.
SELECT tenant, key FROM idempotency INDEXED BY idempotency_created
WHERE created < :before AND tenant BETWEEN :low AND :high
  AND NOT EXISTS (
    SELECT 1 FROM turn WHERE turn.id = idempotency.target AND turn.outcome IN ('running', 'awaiting_approval')
  )
LIMIT :limit;

-- name: delete_key
-- It is free again.
DELETE FROM idempotency WHERE tenant = :tenant AND key = :key;

-- name: old_tries
-- Tries that did not commit, ended long ago, and still have their content. Nothing of a family that is held goes.
SELECT turn.id, turn.tenant, turn.conversation, conversation.family
FROM turn INDEXED BY turn_expiring
CROSS JOIN conversation ON conversation.tenant = turn.tenant AND conversation.id = turn.conversation
WHERE turn.outcome IN ('failed', 'cancelled') AND turn.expired IS NULL
  AND turn.ended < :before AND turn.tenant BETWEEN :low AND :high
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.tenant = conversation.tenant AND hold.family = conversation.family)
LIMIT :limit;

-- name: expire_try
-- What it was asked and why it ended is gone; how it ended, when, and what it cost stays.
UPDATE turn SET input = NULL, error = NULL, key = NULL, request = NULL, steered = NULL, staged = 0, expired = :now
WHERE id = :id;

-- name: is_pending
-- Whether something that was deleted may still be on the disk.
SELECT removals > cleared OR EXISTS (SELECT 1 FROM garbage) FROM meta;
