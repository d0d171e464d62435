-- name: insert_hold
-- A family is held from now on.
INSERT INTO hold (tenant, family, id, reason, "by", since) VALUES (:tenant, :family, :id, :reason, :by, :now);

-- name: delete_hold
-- A family is released from one of its holds.
DELETE FROM hold WHERE tenant = :tenant AND family = :family AND id = :id;

-- name: holds_of_a_family
-- All that keeps a family, the oldest first.
SELECT family, id, reason, "by", since FROM hold WHERE tenant = :tenant AND family = :family ORDER BY since, id;

-- name: holds_of_a_tenant
-- All holds of a tenant, the oldest first.
SELECT family, id, reason, "by", since FROM hold WHERE tenant = :tenant ORDER BY since, id;

-- name: hold_records
-- What a family's records say of its holds, in order.
SELECT body FROM record WHERE tenant = :tenant AND chain = :chain AND kind IN ('held', 'released') ORDER BY number;

-- name: insert_copy
-- An event repeats what another turn says.
INSERT INTO copy (tenant, position, source_turn, source_step) VALUES (:tenant, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: copy_at
-- What an event repeats.
SELECT source_turn, source_step FROM copy
WHERE tenant = :tenant AND segment = CAST(:position AS bigint) >> 32
  AND ordinal = CAST(:position AS bigint) & 4294967295;

-- name: copies_of_a_turn
-- The events that repeat what a turn says.
SELECT position, source_step FROM copy WHERE tenant = :tenant AND source_turn = :turn;

-- name: event_to_erase
-- One event, as an erasure looks at it.
SELECT segment << 32 | ordinal AS id, turn, envelope, payload, chain_digest FROM event
WHERE tenant = :tenant AND segment = CAST(:id AS bigint) >> 32 AND ordinal = CAST(:id AS bigint) & 4294967295;

-- name: events_to_erase
-- The events of a stretch, as an erasure looks at them.
SELECT segment << 32 | ordinal AS id, turn, envelope, payload, chain_digest FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295
ORDER BY ordinal;

-- name: events_of_a_kind
-- The events of a stretch that are of one kind.
SELECT segment << 32 | ordinal AS id, turn, envelope, payload, chain_digest FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295
  AND payload IS NOT NULL AND envelope LIKE :kind
ORDER BY ordinal;

-- name: erase_event
-- The content of an event goes; its envelope and its digests stay.
UPDATE event SET payload = NULL, salt = NULL FROM (SELECT CAST(? AS bigint) AS id) AS place
WHERE event.tenant = :tenant AND event.segment = place.id >> 32 AND event.ordinal = place.id & 4294967295;

-- name: erase_steps
-- The content of a turn's steps goes; their envelopes and digests stay.
UPDATE step SET payload = NULL, salt = NULL WHERE tenant = :tenant AND turn = :turn;

-- name: erase_steps_of_a_kind
-- The same for steps of one kind.
UPDATE step SET payload = NULL, salt = NULL WHERE tenant = :tenant AND turn = :turn AND envelope LIKE :kind;

-- name: size_of_steps
-- How many steps of a turn have content, and how much.
SELECT count(payload) AS steps, CAST(coalesce(sum(octet_length(payload)), 0) AS bigint) AS bytes
FROM step WHERE tenant = :tenant AND turn = :turn;

-- name: erase_turn
-- What a turn was asked, why it failed, and by which key it was known.
UPDATE turn SET input = NULL, error = NULL, key = NULL, request = NULL, steered = NULL WHERE tenant = :tenant AND id = :id;

-- name: erase_error
-- Why a try failed that had the erased text before it: the reason may quote it.
UPDATE turn SET error = NULL WHERE tenant = :tenant AND id = :id;

-- name: change_state
-- The state that a turn left behind, without what was erased.
UPDATE turn SET state = :state WHERE tenant = :tenant AND id = :id;

-- name: change_head_state
-- The same for a conversation whose head stands in the middle of a turn.
UPDATE conversation SET head_state = :state WHERE tenant = :tenant AND id = :id;

-- name: turns_with_a_state
-- The committed turns of a stretch that changed the state, in order.
SELECT id, base, "end" FROM turn
WHERE tenant = :tenant AND "end" BETWEEN :first AND :last AND state IS NOT NULL ORDER BY "end";

-- name: erase_description
-- What a conversation was called, and what it was allowed once and for all.
UPDATE conversation SET title = NULL, tags = '{}', name = :name, approvals = '[]', born_salt = NULL
WHERE tenant = :tenant AND id = :id;

-- name: erase_title
-- What a conversation was called after an erased message.
UPDATE conversation SET title = NULL, born_salt = NULL WHERE tenant = :tenant AND id = :id;

-- name: change_settings
-- The settings of a sub-agent without its task.
UPDATE conversation SET settings = :settings, born_salt = NULL WHERE tenant = :tenant AND id = :id;

-- name: drop_salts_beside_turns
-- No title, tag or name can be guessed from the digests in a conversation's records any more.
UPDATE record SET salt = NULL WHERE chain = :chain AND tenant = :tenant AND (subject IS NULL OR kind = 'charged');

-- name: turns_that_state_settings
-- The turns whose records have a digest of a conversation's settings.
SELECT DISTINCT subject FROM record
WHERE chain = :chain AND tenant = :tenant AND subject IS NOT NULL AND salt IS NOT NULL AND body LIKE '%"settings":%';

-- name: free_all_keys_of_a_conversation
-- All requests that made, forked, rewound or ran a conversation.
DELETE FROM idempotency WHERE tenant = :tenant AND (target = :id OR subject = :id);

-- name: free_all_keys
-- All keys of what came of a request.
DELETE FROM idempotency WHERE tenant = :tenant AND target = :target;

-- name: conversations_of_a_family
-- All conversations of a family, drafts too, with how their open turns stand.
SELECT conversation.*, turn.outcome AS turn_outcome, turn.holder AS turn_holder, turn.started AS turn_started,
  turn.base AS turn_base, holder.seen AS holder_seen, holder.host AS holder_host, holder.process AS holder_process,
  holder.since AS holder_since
FROM conversation
LEFT JOIN turn ON turn.tenant = conversation.tenant AND turn.id = conversation.open_turn
LEFT JOIN holder ON holder.id = turn.holder
WHERE conversation.family = :family AND conversation.tenant = :tenant ORDER BY conversation.id;

-- name: families_of_a_tenant
-- The families that have conversations, drafts too.
SELECT DISTINCT family FROM conversation WHERE tenant = :tenant AND family > :after ORDER BY family LIMIT :limit;

-- name: segments_of_a_family
-- The segments of a family, parents before their children.
SELECT id, base FROM segment WHERE family = :family AND tenant = :tenant ORDER BY id;

-- name: retries_of
-- The tries that run the same input as a turn: those it retries, and those that retry it.
SELECT id FROM turn WHERE tenant = :tenant AND retry_of = :id AND input IS NOT DISTINCT FROM CAST(:input AS text)
UNION
SELECT id FROM turn
WHERE tenant = :tenant AND id = CAST(:retry_of AS bytea) AND input IS NOT DISTINCT FROM CAST(:input AS text);

-- name: children_of_a_turn
-- The sub-agents that calls of a turn have made.
SELECT id FROM conversation WHERE tenant = :tenant AND lineage_turn = :turn AND lineage_kind = 'sub_agent';

-- name: count_erasure
-- Caches that were made before this are void, and dead rows have the text until they are vacuumed.
UPDATE meta SET erasures = erasures + 1, removals = removals + 1;

-- name: read_erasures
-- How often content was erased here.
SELECT erasures FROM meta;

-- name: is_turn_erased
-- Whether something of a try was erased: then its records have no salt.
SELECT 1 FROM record
WHERE subject = :id AND tenant = :tenant AND salt IS NULL AND kind NOT IN ('committed', 'note') LIMIT 1;

-- name: owed_after_erasures
-- How often text was removed here, and how often it was erased: dead rows may have it until they are vacuumed. Whoever
-- read those rows before has a snapshot from before the transaction that is named here.
SELECT removals, cleared, erasures, compacted, CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS horizon FROM meta;

-- name: is_held_back
-- Whether somebody may still read rows that were dead before a transaction, so that no VACUUM removes them: a session, a
-- standby that tells its needs, or a slot that keeps them for one. Sessions of other roles are seen only by some roles.
SELECT EXISTS (
  SELECT 1 FROM pg_stat_activity
  WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
    AND age(backend_xmin) > age(xid(CAST(CAST(:horizon AS text) AS xid8)))
) OR EXISTS (
  SELECT 1 FROM pg_replication_slots WHERE age(xmin) > age(xid(CAST(CAST(:horizon AS text) AS xid8)))
) AS is_held_back;

-- name: settle_erasures
-- Dead rows were vacuumed after so many removals and so many erasures.
UPDATE meta SET cleared = greatest(cleared, :removals), compacted = greatest(compacted, :erasures);

-- name: digests_of_a_segment
-- The chain digests of a segment's events.
SELECT segment << 32 | ordinal AS id, chain_digest FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295
ORDER BY ordinal;

-- name: erasure_records
-- All erasures of a tenant, the oldest first.
SELECT id, chain, body, subject FROM record WHERE tenant = :tenant AND kind = 'erased' AND id > :after ORDER BY id LIMIT :limit;

-- name: erasure_record
-- Whether an erasure has been made here.
SELECT id FROM record
WHERE tenant = :tenant AND subject = :subject AND kind NOT IN ('committed', 'note') AND kind = 'erased';

-- name: families_with_holds
-- The families that are held, or whose records tell of a hold.
SELECT family FROM hold WHERE tenant = :tenant
UNION
SELECT substr(chain, 2) FROM record WHERE tenant = :tenant AND kind IN ('held', 'released');
