-- A list is found in two steps. A statement of the first kind finds where its next conversations are: it walks an index
-- from a place on, in the order of the list, and stops after :limit. `read_listed` then reads the conversations.
-- A place is (used, id) in a list by last use, and (0, id) in a list by creation.

-- name: list_by_creation
-- The next conversations of one kind, the newest first.
SELECT 0 AS used, id FROM conversation
WHERE tenant = :tenant AND lineage_kind = :kind AND draft = 0 AND id < :id
ORDER BY id DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: list_by_use
-- The next conversations of one kind, the last used first.
SELECT used, id FROM conversation
WHERE tenant = :tenant AND lineage_kind = :kind AND draft = 0 AND (used, id) < (:used::bigint, :id::bytea)
ORDER BY used DESC, id DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: list_drafts
-- The next drafts, the newest first. They are few: a draft is kept for a time only.
SELECT used, id FROM conversation
WHERE tenant = :tenant AND draft = 1 AND id < :id
ORDER BY id DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: list_tagged_by_creation
-- The next conversations with a tag, the newest first. :tag is a JSON object with the tag, and :tags one with the further
-- tags that they must have.
SELECT 0 AS used, tag.conversation AS id
FROM tag
CROSS JOIN LATERAL (
  SELECT draft, lineage_kind FROM conversation WHERE tenant = tag.tenant AND id = tag.conversation OFFSET 0
) AS conversation
WHERE tag.tenant = :tenant
  AND tag.key = (SELECT key FROM json_each_text(:tag::json)) AND tag.value = (SELECT value FROM json_each_text(:tag::json))
  AND tag.conversation < :id
  AND (:drafts::bigint <> 0 OR conversation.draft = 0)
  AND (:sub_agents::bigint <> 0 OR conversation.lineage_kind <> 'sub_agent')
  AND (:sides::bigint <> 0 OR conversation.lineage_kind <> 'side')
  AND (:asides::bigint <> 0 OR conversation.lineage_kind <> 'aside')
  AND NOT EXISTS (
    SELECT 1 FROM json_each_text(:tags::json) AS further
    WHERE NOT EXISTS (
      SELECT 1 FROM tag AS other
      WHERE other.tenant = :tenant AND other.key = further.key AND other.value = further.value
        AND other.conversation = tag.conversation
      OFFSET 0
    )
    OFFSET 0
  )
ORDER BY tag.conversation DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: list_tagged_by_use
-- The same, the last used first.
SELECT tag.used, tag.conversation AS id
FROM tag
CROSS JOIN LATERAL (
  SELECT draft, lineage_kind FROM conversation WHERE tenant = tag.tenant AND id = tag.conversation OFFSET 0
) AS conversation
WHERE tag.tenant = :tenant
  AND tag.key = (SELECT key FROM json_each_text(:tag::json)) AND tag.value = (SELECT value FROM json_each_text(:tag::json))
  AND (tag.used, tag.conversation) < (:used::bigint, :id::bytea)
  AND (:drafts::bigint <> 0 OR conversation.draft = 0)
  AND (:sub_agents::bigint <> 0 OR conversation.lineage_kind <> 'sub_agent')
  AND (:sides::bigint <> 0 OR conversation.lineage_kind <> 'side')
  AND (:asides::bigint <> 0 OR conversation.lineage_kind <> 'aside')
  AND NOT EXISTS (
    SELECT 1 FROM json_each_text(:tags::json) AS further
    WHERE NOT EXISTS (
      SELECT 1 FROM tag AS other
      WHERE other.tenant = :tenant AND other.key = further.key AND other.value = further.value
        AND other.conversation = tag.conversation
      OFFSET 0
    )
    OFFSET 0
  )
ORDER BY tag.used DESC, tag.conversation DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: count_tagged
-- How many conversations have a tag, a JSON object; it counts no further than :limit.
SELECT count(*) AS count FROM (
  SELECT 1 FROM tag
  WHERE tenant = :tenant
    AND key = (SELECT key FROM json_each_text(:tag::json)) AND value = (SELECT value FROM json_each_text(:tag::json))
  LIMIT :limit
) AS counted;

-- name: list_open
-- The next conversations whose open turn stands so, the newest first. :dead lists, in hex, the processes that are known
-- dead, so that a running turn of theirs counts as interrupted. Open turns have an index; the lock of a conversation has
-- none, since it moves with every turn.
SELECT conversation.used, conversation.id
FROM turn
CROSS JOIN LATERAL (
  SELECT used, id FROM conversation
  WHERE tenant = turn.tenant AND id = turn.conversation AND open_turn = turn.id
  OFFSET 0
) AS conversation
LEFT JOIN LATERAL (SELECT id FROM holder WHERE id = turn.holder OFFSET 0) AS holder ON true
WHERE turn.tenant = :tenant AND turn.outcome IN ('running', 'awaiting_approval') AND turn.conversation < :id
  AND :status = CASE
    WHEN turn.outcome <> 'running' THEN turn.outcome
    WHEN holder.id IS NULL OR upper(encode(holder.id, 'hex')) IN (SELECT json_array_elements_text(:dead::json)) THEN 'interrupted'
    ELSE 'running'
  END
ORDER BY turn.conversation DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: list_family
-- The next conversations of a family, the newest first.
SELECT used, id FROM conversation
WHERE tenant = :tenant AND family = :of AND id < :id
ORDER BY id DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: list_children
-- The next sub-agents of a conversation, the newest first.
SELECT used, id FROM conversation
WHERE tenant = :tenant AND lineage_source = :of AND lineage_kind = 'sub_agent' AND id < :id
ORDER BY id DESC LIMIT NULLIF(:limit::bigint, -1);

-- name: read_listed
-- Many conversations, each with how its open turn stands. :ids is the bytes of all their ids, one after the other.
SELECT conversation.*, turn.outcome AS turn_outcome, turn.holder AS turn_holder, holder.seen AS holder_seen
FROM generate_series(0, length(:ids::bytea) / 16 - 1) AS wanted (number)
CROSS JOIN LATERAL (
  SELECT * FROM conversation WHERE tenant = :tenant AND id = substr(:ids::bytea, wanted.number * 16 + 1, 16) OFFSET 0
) AS conversation
LEFT JOIN LATERAL (
  SELECT outcome, holder FROM turn WHERE tenant = conversation.tenant AND id = conversation.open_turn OFFSET 0
) AS turn ON true
LEFT JOIN holder ON holder.id = turn.holder;

-- name: count_folded
-- How many branches were set aside from a conversation, and how many sides it has; it counts no further than :limit.
SELECT count(*) FILTER (WHERE lineage_kind = 'aside') AS asides, count(*) FILTER (WHERE lineage_kind = 'side') AS sides
FROM (
  SELECT lineage_kind FROM conversation
  WHERE tenant = :tenant AND lineage_source = :of AND lineage_kind IN ('aside', 'side') AND draft = 0
  LIMIT :limit
) AS folded;

-- name: use_conversation
-- A turn begins in a conversation: it moves to the front of lists by last use.
UPDATE conversation SET used = :now WHERE tenant = :tenant AND id = :id;
