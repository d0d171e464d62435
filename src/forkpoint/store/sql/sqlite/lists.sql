-- A list is found in two steps. A statement of the first kind finds where its next conversations are: it walks an index
-- from a place on, in the order of the list, and stops after :limit. `read_listed` then reads the conversations.
-- A place is (used, id) in a list by last use, and (0, id) in a list by creation.

-- name: list_by_creation
-- The next conversations of one kind, the newest first.
SELECT 0 AS used, id FROM conversation
WHERE tenant = :tenant AND lineage_kind = :kind AND draft = 0 AND id < :id
ORDER BY id DESC LIMIT :limit;

-- name: list_by_use
-- The next conversations of one kind, the last used first.
SELECT used, id FROM conversation
WHERE tenant = :tenant AND lineage_kind = :kind AND draft = 0 AND (used, id) < (:used, :id)
ORDER BY used DESC, id DESC LIMIT :limit;

-- name: list_drafts
-- The next drafts, the newest first. They are few: a draft is kept for a time only.
SELECT used, id FROM conversation INDEXED BY conversation_draft
WHERE draft = 1 AND tenant = :tenant AND id < :id
ORDER BY id DESC LIMIT :limit;

-- name: list_tagged_by_creation
-- The next conversations with a tag, the newest first. :tag is a JSON object with the tag, and :tags one with the further
-- tags that they must have.
SELECT 0 AS used, tag.conversation AS id
FROM tag CROSS JOIN conversation ON conversation.tenant = tag.tenant AND conversation.id = tag.conversation
WHERE tag.tenant = :tenant
  AND tag.key = (SELECT key FROM json_each(:tag)) AND tag.value = (SELECT value FROM json_each(:tag))
  AND tag.conversation < :id
  AND (:drafts OR conversation.draft = 0)
  AND (:sub_agents OR conversation.lineage_kind <> 'sub_agent')
  AND (:sides OR conversation.lineage_kind <> 'side')
  AND (:asides OR conversation.lineage_kind <> 'aside')
  AND NOT EXISTS (
    SELECT 1 FROM json_each(:tags) AS further
    WHERE NOT EXISTS (
      SELECT 1 FROM tag AS other
      WHERE other.tenant = :tenant AND other.key = further.key AND other.value = further.value
        AND other.conversation = tag.conversation
    )
  )
ORDER BY tag.conversation DESC LIMIT :limit;

-- name: list_tagged_by_use
-- The same, the last used first.
SELECT tag.used, tag.conversation AS id
FROM tag CROSS JOIN conversation ON conversation.tenant = tag.tenant AND conversation.id = tag.conversation
WHERE tag.tenant = :tenant
  AND tag.key = (SELECT key FROM json_each(:tag)) AND tag.value = (SELECT value FROM json_each(:tag))
  AND (tag.used, tag.conversation) < (:used, :id)
  AND (:drafts OR conversation.draft = 0)
  AND (:sub_agents OR conversation.lineage_kind <> 'sub_agent')
  AND (:sides OR conversation.lineage_kind <> 'side')
  AND (:asides OR conversation.lineage_kind <> 'aside')
  AND NOT EXISTS (
    SELECT 1 FROM json_each(:tags) AS further
    WHERE NOT EXISTS (
      SELECT 1 FROM tag AS other
      WHERE other.tenant = :tenant AND other.key = further.key AND other.value = further.value
        AND other.conversation = tag.conversation
    )
  )
ORDER BY tag.used DESC, tag.conversation DESC LIMIT :limit;

-- name: count_tagged
-- How many conversations have a tag, a JSON object; it counts no further than :limit.
SELECT count(*) FROM (
  SELECT 1 FROM tag
  WHERE tenant = :tenant AND key = (SELECT key FROM json_each(:tag)) AND value = (SELECT value FROM json_each(:tag))
  LIMIT :limit
);

-- name: list_open
-- The next conversations whose open turn stands so, the newest first. :dead lists, in hex, the processes that are known
-- dead, so that a running turn of theirs counts as interrupted.
SELECT conversation.used, conversation.id
FROM conversation
CROSS JOIN turn ON turn.id = conversation.open_turn
LEFT JOIN holder ON holder.id = turn.holder
WHERE conversation.tenant = :tenant AND conversation.open_turn IS NOT NULL AND conversation.id < :id
  AND :status = CASE
    WHEN turn.outcome <> 'running' THEN turn.outcome
    WHEN holder.id IS NULL OR hex(holder.id) IN (SELECT value FROM json_each(:dead)) THEN 'interrupted'
    ELSE 'running'
  END
ORDER BY conversation.id DESC LIMIT :limit;

-- name: list_family
-- The next conversations of a family, the newest first.
SELECT used, id FROM conversation
WHERE family = :of AND tenant = :tenant AND id < :id
ORDER BY id DESC LIMIT :limit;

-- name: list_children
-- The next sub-agents of a conversation, the newest first.
SELECT used, id FROM conversation
WHERE lineage_source = :of AND lineage_kind = 'sub_agent' AND tenant = :tenant AND id < :id
ORDER BY id DESC LIMIT :limit;

-- name: read_listed
-- Many conversations, each with how its open turn stands. :ids is the bytes of all their ids, one after the other.
WITH RECURSIVE wanted (number) AS (
  SELECT 0 WHERE length(:ids) > 0
  UNION ALL
  SELECT number + 1 FROM wanted WHERE (number + 1) * 16 < length(:ids)
)
SELECT conversation.*, turn.outcome AS turn_outcome, turn.holder AS turn_holder, holder.seen AS holder_seen
FROM wanted
CROSS JOIN conversation ON conversation.tenant = :tenant AND conversation.id = substr(:ids, wanted.number * 16 + 1, 16)
LEFT JOIN turn ON turn.id = conversation.open_turn
LEFT JOIN holder ON holder.id = turn.holder;

-- name: count_folded
-- How many branches were set aside from a conversation, and how many sides it has; it counts no further than :limit.
SELECT total(lineage_kind = 'aside') AS asides, total(lineage_kind = 'side') AS sides FROM (
  SELECT lineage_kind FROM conversation
  WHERE tenant = :tenant AND lineage_source = :of AND lineage_kind IN ('aside', 'side') AND draft = 0
  LIMIT :limit
);

-- name: use_conversation
-- A turn begins in a conversation: it moves to the front of lists by last use.
UPDATE conversation SET used = :now WHERE tenant = :tenant AND id = :id;
