-- name: family_conversations
-- All conversations of a family, drafts too.
SELECT * FROM conversation WHERE family = :family AND tenant = :tenant ORDER BY id;

-- name: segments_down
-- The segments of a family, the newest first: a base is always in an older one.
SELECT id, base, base_digest FROM segment WHERE family = :family AND tenant = :tenant ORDER BY id DESC;

-- name: page_of_chain
-- A page of a chain's records.
SELECT number, kind, subject, body, salt, digest FROM record
WHERE tenant = :tenant AND chain = :chain AND number > :after AND number <= :upto ORDER BY number LIMIT :limit;

-- name: record_at
-- One record.
SELECT number, kind, subject, body, salt, digest FROM record
WHERE tenant = :tenant AND chain = :chain AND number = :number;

-- name: record_end
-- The last record of a chain.
SELECT number, digest FROM record WHERE tenant = :tenant AND chain = :chain ORDER BY number DESC LIMIT 1;

-- name: last_record_about
-- The number of the last record about a turn that did not commit.
SELECT max(number) AS number FROM record
WHERE subject = :subject AND tenant = :tenant AND kind NOT IN ('committed', 'note')
  AND kind IN ('failed', 'cancelled', 'awaiting_approval', 'resumed', 'steered');

-- name: turn_writers
-- Who wrote the turns that end in a stretch of a segment, and how far the records about these turns go in their chains.
SELECT conversation, max(record) AS number
FROM turn WHERE tenant = :tenant AND "end" BETWEEN :first AND :last GROUP BY conversation;

-- name: turn_row
-- One turn, whoever holds it.
SELECT * FROM turn WHERE tenant = :tenant AND id = :id;

-- name: turns_ending
-- The turns that end in a stretch of a segment.
SELECT * FROM turn WHERE tenant = :tenant AND "end" BETWEEN :first AND :last ORDER BY "end";

-- name: turns_without_end
-- A conversation's tries that are not history.
SELECT * FROM turn
WHERE conversation = :conversation AND tenant = :tenant AND outcome IN ('failed', 'cancelled')
UNION ALL
SELECT * FROM turn WHERE id = CAST(:open_turn AS bytea) AND tenant = :tenant
ORDER BY started, id;

-- name: ledger_rows
-- What a family's ledger says.
SELECT id, conversation, usage, deleted FROM ledger
WHERE tenant = :tenant AND family = :family ORDER BY conversation, deleted, id NULLS FIRST, usage;

-- name: begin_import
-- Segments that are being imported are reached by no head yet; this keeps the collector from them.
INSERT INTO import (id, tenant, family, holder, seen) VALUES (:id, :tenant, :family, :holder, :now);

-- name: touch_import
-- It goes on. No row: somebody took it for dead, and has removed it.
UPDATE import SET seen = :now WHERE tenant = :tenant AND id = :id;

-- name: pin_segment
-- A segment of an import.
INSERT INTO import_segment (tenant, segment, import) VALUES (:tenant, :segment, :import);

-- name: segments_of_import
-- The segments of an import, the newest first.
SELECT segment FROM import_segment WHERE tenant = :tenant AND import = :import ORDER BY segment DESC;

-- name: end_import
-- All of it is in place, or all of it is removed.
DELETE FROM import WHERE tenant = :tenant AND id = :id;

-- name: unpin_segment
-- A segment that is reached now, or gone.
DELETE FROM import_segment WHERE tenant = :tenant AND segment = :segment;

-- name: unpin_segments
-- All segments of an import are reached now.
DELETE FROM import_segment WHERE tenant = :tenant AND import = :import;

-- name: imports
-- The imports that are under way or were interrupted.
SELECT id, family, holder, seen FROM import WHERE tenant = :tenant;

-- name: open_imported_segment
-- A run of events that comes from another store. Whoever first looks for landmarks in it finds them.
INSERT INTO segment (tenant, family, base, base_digest) VALUES (:tenant, :family, :base, :base_digest) RETURNING id;

-- name: import_turn
-- A turn of another store. Nobody holds it; a turn that was running there is interrupted here.
INSERT INTO turn (
  id, tenant, conversation, kind, outcome, base, "end", holder, token, staged, input, key, request,
  usage, totals, state_of, state, open_calls, error, retry_of, started, ended, "by", cancel_asked, steps_digest, record, expired,
  steered
) VALUES (
  :id, :tenant, :conversation, :kind, :outcome, :base, :end, NULL, :token, :staged, :input, NULL, NULL,
  :usage, :totals, :state_of, :state, :open_calls, :error, :retry_of, :started, :ended, :by, NULL, :steps_digest, :record, :expired,
  :steered
)
ON CONFLICT (tenant, id) DO UPDATE SET
  conversation = excluded.conversation, kind = excluded.kind, outcome = excluded.outcome, base = excluded.base,
  "end" = excluded."end", holder = NULL, token = excluded.token, staged = excluded.staged, input = excluded.input,
  key = NULL, request = NULL, usage = excluded.usage, totals = excluded.totals, state_of = excluded.state_of,
  state = excluded.state, open_calls = excluded.open_calls, error = excluded.error, retry_of = excluded.retry_of,
  started = excluded.started, ended = excluded.ended, "by" = excluded."by", cancel_asked = NULL,
  steps_digest = excluded.steps_digest, record = excluded.record, expired = excluded.expired,
  steered = excluded.steered, budgeted = excluded.budgeted, ran = excluded.ran, since = excluded.since,
  accepted = excluded.accepted, takeovers = excluded.takeovers;

-- name: import_conversation
-- A conversation of another store, or one that went on there.
INSERT INTO conversation (
  tenant, id, name, family, revision,
  head, head_digest, head_turn, head_totals, head_state_of, head_state, head_open_calls, open_turn,
  settings, cache, approvals, lineage_kind, lineage_source, lineage_at, lineage_turn, lineage_call,
  own_from, inherited, carries_metrics, title, tags, draft, created, updated, used,
  born, born_salt, first_digest, record_digest, records
) VALUES (
  :tenant, :id, :name, :family, :revision,
  :head, :head_digest, :head_turn, :head_totals, :head_state_of, :head_state, :head_open_calls, :open_turn,
  :settings, :cache, :approvals, :lineage_kind, :lineage_source, :lineage_at, :lineage_turn, :lineage_call,
  :own_from, :inherited, CAST(:carries_metrics AS int), :title, :tags, CAST(:draft AS int), :created, :updated, :used,
  :born, :born_salt, :first_digest, :record_digest, :records
)
ON CONFLICT (tenant, id) DO UPDATE SET
  name = excluded.name, revision = excluded.revision,
  head = excluded.head, head_digest = excluded.head_digest, head_turn = excluded.head_turn,
  head_totals = excluded.head_totals, head_state_of = excluded.head_state_of, head_state = excluded.head_state,
  head_open_calls = excluded.head_open_calls, open_turn = excluded.open_turn, open_segment = NULL,
  settings = excluded.settings, cache = excluded.cache, approvals = excluded.approvals,
  own_from = excluded.own_from, inherited = excluded.inherited, title = excluded.title, tags = excluded.tags,
  draft = excluded.draft, updated = excluded.updated, used = excluded.used, record_digest = excluded.record_digest, records = excluded.records,
  born_salt = CASE WHEN CAST(:erases AS int) = 1 THEN excluded.born_salt ELSE conversation.born_salt END;

-- name: import_record
-- A record of another store. If this store has only its digest, because an earlier import had left its conversation
-- behind, it gets its body. If something was erased there, it loses its salt here too.
INSERT INTO record (tenant, chain, number, kind, subject, body, salt, digest)
VALUES (:tenant, :chain, :number, :kind, :subject, :body, :salt, :digest)
ON CONFLICT (tenant, chain, number) DO UPDATE SET body = excluded.body, salt = excluded.salt
WHERE excluded.body IS NOT NULL
  AND (record.body IS NULL OR (CAST(:erases AS int) = 1 AND excluded.salt IS NULL));

-- name: import_chain
-- Where a family's chain stands after the records that came.
INSERT INTO chain (tenant, chain, records, digest) VALUES (:tenant, :chain, :records, :digest)
ON CONFLICT (tenant, chain) DO UPDATE SET records = excluded.records, digest = excluded.digest;

-- name: import_ledger
-- What was spent in another store, unless it is there already.
INSERT INTO ledger (tenant, family, conversation, usage, deleted, id)
SELECT CAST(:tenant AS text), CAST(:family AS bytea), CAST(:conversation AS bytea), CAST(:usage AS text),
  CAST(:deleted AS bigint), CAST(:id AS bytea)
WHERE NOT EXISTS (
  SELECT 1 FROM ledger
  WHERE tenant = :tenant AND family = :family AND conversation = :conversation
    AND usage = :usage AND deleted = :deleted AND id IS NOT DISTINCT FROM CAST(:id AS bytea)
);

-- name: removals_of_family
-- The conversations of a family that were deleted, or expired as drafts.
SELECT subject, body FROM record
WHERE tenant = :tenant AND chain = :chain AND kind IN ('deleted', 'expired') AND subject IS NOT NULL;

-- name: imports_of_family
-- What a family's records say about imports.
SELECT body FROM record WHERE tenant = :tenant AND chain = :chain AND kind = 'imported' ORDER BY number;

-- name: newer_erasure
-- Whether something of a family was erased after a record of its chain.
SELECT 1 FROM record WHERE tenant = :tenant AND chain = :chain AND number > :number AND kind = 'erased' LIMIT 1;
