-- name: read_conversation
-- One conversation, with how its open turn stands and that turn's process: where it is, and when it was last seen.
-- after: lock_conversation
SELECT conversation.*, turn.outcome AS turn_outcome, turn.holder AS turn_holder, turn.started AS turn_started,
  holder.seen AS holder_seen, holder.host AS holder_host, holder.process AS holder_process, holder.since AS holder_since
FROM conversation
LEFT JOIN turn ON turn.tenant = conversation.tenant AND turn.id = conversation.open_turn
LEFT JOIN holder ON holder.id = turn.holder
WHERE conversation.tenant = :tenant AND conversation.id = :id;

-- name: lock_conversation
-- Whoever writes waits here until no other writer has the conversation. Why the statement that reads does not do both: it
-- would show the conversation as the other writer has left it, beside a turn as it was before.
SELECT 1 FROM conversation WHERE tenant = :tenant AND id = :id FOR NO KEY UPDATE;

-- name: find_conversation
-- The inner id behind an outer name.
SELECT id FROM conversation WHERE tenant = :tenant AND name = :name;

-- name: read_revisions
-- The revisions of many conversations, each with its number in the list. :ids is the bytes of all their ids, one after
-- the other.
SELECT wanted.number, conversation.revision
FROM generate_series(0, length(:ids::bytea) / 16 - 1) AS wanted (number)
CROSS JOIN LATERAL (
  SELECT revision FROM conversation WHERE tenant = :tenant AND id = substr(:ids::bytea, wanted.number * 16 + 1, 16) OFFSET 0
) AS conversation;

-- name: find_child
-- The sub-agent that a call of a turn spawned.
-- after: lock_call
SELECT id FROM conversation
WHERE tenant = :tenant AND lineage_turn = :turn AND lineage_call = :call AND lineage_kind = 'sub_agent';

-- name: lock_call
-- A call spawns once: whoever would spawn for it waits until nobody else is about to.
SELECT pg_advisory_xact_lock(hashtextextended(:tenant || ' call ' || encode(:turn::bytea, 'hex') || :call, 0));

-- name: count_conversations
-- How many conversations of a tenant a list would show.
SELECT count(*) AS count FROM conversation WHERE tenant = :tenant AND draft = 0;

-- name: insert_conversation
-- A new conversation, fork, set-aside branch, side or draft: always exactly this one row, and one for each tag, which
-- a trigger writes.
INSERT INTO conversation (
  tenant, id, name, family, revision,
  head, head_digest, head_turn, head_totals, head_state_of, head_state, head_open_calls,
  settings, cache, approvals, lineage_kind, lineage_source, lineage_at, lineage_turn, lineage_call,
  own_from, inherited, carries_metrics, title, tags, draft, created, updated, used,
  born, born_salt, first_digest, record_digest, records
) VALUES (
  :tenant, :id, :name, :family, 0,
  :head, :head_digest, :head_turn, :head_totals, :head_state_of, :head_state, :head_open_calls,
  :settings, :cache, :approvals, :lineage_kind, :lineage_source, :lineage_at, :lineage_turn, :lineage_call,
  :own_from, :inherited, CAST(:carries_metrics AS integer), :title, :tags, CAST(:draft AS integer), :now, :now, :now,
  :born, :born_salt, :record_digest, :record_digest, :records
);

-- name: describe_conversation
-- Title and tags; NULL leaves one as it is, an empty title removes it. Touches neither revision nor lock.
UPDATE conversation
SET title = CASE WHEN :title::text IS NULL THEN title WHEN :title = '' THEN NULL ELSE :title END,
    tags = coalesce(:tags, tags),
    updated = :now
WHERE tenant = :tenant AND id = :id;

-- name: read_approvals
-- The standing approvals of a conversation.
SELECT approvals FROM conversation WHERE tenant = :tenant AND id = :id;

-- name: change_approvals
-- Other standing approvals, if they are still those that the caller read. Touches neither revision nor lock.
UPDATE conversation SET approvals = :approvals, updated = :now
WHERE tenant = :tenant AND id = :id AND approvals = :before;

-- name: rename_conversation
-- Another outer name. Touches neither revision nor lock; unless a revision is expected: then it must be free, and moves,
-- so that whoever has read it before does not begin anything in it.
UPDATE conversation
SET name = :name, updated = :now, revision = revision + CASE WHEN :revision::bigint IS NULL THEN 0 ELSE 1 END
WHERE tenant = :tenant AND id = :id AND (:revision::bigint IS NULL OR (revision = :revision AND open_turn IS NULL));

-- name: admit_conversation
-- A draft becomes a conversation: it is listed and stays, though no turn of it has committed.
UPDATE conversation SET draft = 0, updated = :now WHERE tenant = :tenant AND id = :id AND draft = 1;

-- name: move_head
-- The one statement that moves a head to what was committed: by the turn that holds the lock, or by a note. Whose spend
-- is whose (:own_from, :inherited) is another only if the turn stood elsewhere than at the head. It changes no column
-- that stands in an index, but for the first commit after a fork: then the head is in another segment.
UPDATE conversation
SET head = :head, head_digest = :head_digest, head_turn = :head_turn, head_totals = :head_totals,
    head_state_of = :head_state_of, head_state = NULL, head_open_calls = :head_open_calls,
    open_turn = NULL, revision = revision + 1, updated = :now,
    settings = coalesce(:settings, settings), cache = coalesce(:cache, cache),
    own_from = coalesce(:own_from::bigint, own_from), inherited = coalesce(:inherited, inherited),
    records = :records, record_digest = :record_digest
WHERE tenant = :tenant AND id = :id AND open_turn IS NOT DISTINCT FROM :open_turn::bytea AND revision = :revision
    AND records = :records::bigint - 1;

-- name: append_to
-- The segment that a conversation may append to from now on: its commit has opened it.
UPDATE conversation SET open_segment = :segment WHERE tenant = :tenant AND id = :id;

-- name: rewind_head
-- The one statement that moves a head back. The segment is closed: what follows gets a new one.
UPDATE conversation
SET head = :head, head_digest = :head_digest, head_turn = :head_turn, head_totals = :head_totals,
    head_state_of = :head_state_of, head_state = :head_state, head_open_calls = :head_open_calls,
    own_from = :own_from, inherited = :inherited,
    open_segment = NULL, revision = revision + 1, updated = :now
WHERE tenant = :tenant AND id = :id AND open_turn IS NULL AND revision = :revision;

-- name: keep_head
-- The one statement that moves a head to the head of a branch, with what comes along from there. The segment is closed,
-- as it is by a rewind.
UPDATE conversation
SET head = :head, head_digest = :head_digest, head_turn = :head_turn, head_totals = :head_totals,
    head_state_of = :head_state_of, head_state = :head_state, head_open_calls = :head_open_calls,
    own_from = :own_from, inherited = :inherited, settings = :settings, cache = :cache,
    open_segment = NULL, revision = revision + 1, updated = :now
WHERE tenant = :tenant AND id = :id AND open_turn IS NULL AND revision = :revision;

-- name: with_dependents
-- A conversation, its sides and the sub-agents under it, however deep; forks are not among them. Sub-agents are found by
-- their parent, sides by the index of what is folded under a conversation.
WITH RECURSIVE doomed (id) AS (
  SELECT id FROM conversation WHERE tenant = :tenant AND id = :id
  UNION
  SELECT dependent.id
  FROM doomed
  CROSS JOIN LATERAL (
    SELECT conversation.id FROM conversation
    WHERE conversation.tenant = :tenant AND conversation.lineage_source = doomed.id AND conversation.lineage_kind = 'sub_agent'
    UNION ALL
    SELECT conversation.id FROM conversation
    WHERE conversation.tenant = :tenant AND conversation.lineage_source = doomed.id AND conversation.lineage_kind = 'side'
      AND conversation.family = :family
  ) AS dependent
)
SELECT id FROM doomed;

-- name: delete_conversation
-- The pointer only. What it pointed to is the collector's business.
DELETE FROM conversation WHERE tenant = :tenant AND id = :id;
