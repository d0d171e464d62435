-- name: take_lock
-- The compare-and-set that begins a turn. No row: it is taken, or the revision is another, or nothing is there.
UPDATE conversation
SET open_turn = :turn
WHERE tenant = :tenant AND id = :id AND open_turn IS NULL AND (:revision::bigint IS NULL OR revision = :revision);

-- name: read_taken
-- The conversation that a turn has just taken, how often content was erased in the store, and whether the family has a
-- budget.
SELECT conversation.*, meta.erasures,
  EXISTS (SELECT 1 FROM budget WHERE budget.tenant = :tenant AND budget.family = conversation.family) AS budgeted
FROM conversation CROSS JOIN meta WHERE conversation.tenant = :tenant AND conversation.id = :id;

-- name: release_lock
-- The turn is over, or waits for nobody: the conversation is free.
UPDATE conversation SET open_turn = NULL, updated = :now WHERE tenant = :tenant AND open_turn = :turn AND id = :id;

-- name: insert_turn
-- A new try, running; or a note, committed at once.
INSERT INTO turn (
  id, tenant, conversation, kind, outcome, base, "end", holder, token, input, key, request,
  usage, totals, state_of, state, open_calls, retry_of, started, ended, "by", record, budgeted, ran, since,
  accepted
) VALUES (
  :id, :tenant, :conversation, :kind, :outcome, :base, :end, :holder, :token, :input, :key, :request,
  :usage, :totals, :state_of, :state, :open_calls, :retry_of, :now, :ended, :by, :record, CAST(:budgeted AS integer), 0, :since,
  :accepted
);

-- name: commit_turn
-- The compare-and-set that commits: running, mine, and with all steps and messages that I know of. No row: this writer
-- has lost the turn, or a step of its own that it never heard of; or somebody has just steered the turn, or the family
-- has got a budget.
-- after: lock_turn
UPDATE turn
SET outcome = 'committed', staged = 0, steps_digest = NULL, "end" = :end, record = :record, usage = :usage, totals = :totals,
    state_of = :state_of, state = :state, open_calls = :open_calls, holder = NULL, ended = :now,
    ran = coalesce(ran, 0) + greatest(:now::bigint - since, 0), since = NULL
WHERE tenant = :tenant AND id = :id AND token = :token AND outcome = 'running' AND staged = :staged
    AND steered IS NOT DISTINCT FROM :steered::text AND budgeted = CAST(:budgeted AS integer);

-- name: place_turn
-- Where a turn ends, if its segment was only opened by its commit.
UPDATE turn SET "end" = :end WHERE tenant = :tenant AND id = :id;

-- name: name_record
-- Which record tells of the commit of a turn, if it is another than the commit took it to be.
UPDATE turn SET record = :record WHERE tenant = :tenant AND id = :id;

-- name: journal_turn
-- The compare-and-set of a journal: what the turn has used, and how many steps it has from now on. Its writer hears what
-- was steered to the turn meanwhile.
UPDATE turn SET usage = :usage, staged = :staged::bigint + :more::bigint, steps_digest = :steps
WHERE tenant = :tenant AND id = :id AND token = :token AND outcome = 'running' AND staged = :staged
    AND budgeted = CAST(:budgeted AS integer)
RETURNING steered;

-- name: change_steered
-- Another message was steered to a turn, or its journal has one of them now.
UPDATE turn SET steered = :steered WHERE tenant = :tenant AND id = :id;

-- name: end_turn
-- Ends or parks a running turn without moving the head, if it is still mine.
-- after: lock_turn
UPDATE turn
SET outcome = :outcome, error = :error, usage = :usage, holder = NULL, ended = :ended,
    ran = coalesce(ran, 0) + greatest(:now::bigint - since, 0), since = NULL
WHERE tenant = :tenant AND id = :id AND token = :token AND outcome = 'running';

-- name: close_turn
-- Ends a turn from its row, whatever its token.
UPDATE turn SET outcome = :outcome, error = :error, usage = :usage, holder = NULL, ended = :now, since = NULL
WHERE tenant = :tenant AND id = :id;

-- name: let_go
-- A turn that was taken over, and whose new holder is no longer there: interrupted, as it was.
UPDATE turn SET holder = NULL, since = NULL WHERE tenant = :tenant AND id = :id;

-- name: take_over
-- A new holder and a new token; whoever had the old one writes nothing any more. Nobody has asked this holder to cancel.
-- :deaths is 1 if the turn is taken from a process that died, else 0.
UPDATE turn
SET outcome = 'running', holder = :holder, token = :token, error = NULL, ended = NULL, cancel_asked = NULL,
    budgeted = CAST(:budgeted AS integer), since = :now, takeovers = takeovers + :deaths::bigint
WHERE tenant = :tenant AND id = :id AND token IS NOT DISTINCT FROM :old_token::bytea AND outcome = :outcome;

-- name: give_up
-- No process goes on with a turn by itself any more: it has one take-over more than is allowed. Whoever had it writes
-- nothing any more either.
UPDATE turn SET holder = NULL, since = NULL, token = :token, takeovers = takeovers + 1
WHERE tenant = :tenant AND id = :id AND token IS NOT DISTINCT FROM :old_token::bytea AND outcome = 'running';

-- name: leave_open
-- A turn whose process could not go on, and that another one shall go on with: interrupted, with one take-over more.
-- Whoever had it writes nothing any more.
UPDATE turn SET holder = NULL, token = :token, usage = :usage, takeovers = takeovers + 1,
    ran = coalesce(ran, 0) + greatest(:now::bigint - since, 0), since = NULL
WHERE tenant = :tenant AND id = :id AND token = :old_token::bytea AND outcome = 'running';

-- name: accept_turn
-- Somebody is about to be told that a turn runs, who will ask later how it ended.
UPDATE turn SET accepted = 1 WHERE tenant = :tenant AND id = :id AND outcome = 'running';

-- name: list_orphans
-- The next turns that are open and that no process runs, of some tenants, in the order of their conversations; with
-- :accepted only those that somebody was promised. :dead lists, in hex, the processes that are known dead. A turn that
-- was given up has more than :most take-overs, and is left out. Open turns have an index.
SELECT turn.tenant, turn.conversation, turn.id, turn.accepted, turn.takeovers, turn.cancel_asked
FROM turn
LEFT JOIN LATERAL (SELECT id FROM holder WHERE id = turn.holder OFFSET 0) AS holder ON true
WHERE turn.outcome IN ('running', 'awaiting_approval') AND turn.outcome = 'running'
  AND turn.tenant BETWEEN :low AND :high AND (turn.tenant, turn.conversation) > (:tenant_after, :after::bytea)
  AND turn.takeovers <= :most AND turn.accepted >= :accepted
  AND (holder.id IS NULL OR upper(encode(holder.id, 'hex')) IN (SELECT json_array_elements_text(:dead::json)))
ORDER BY turn.tenant, turn.conversation LIMIT :limit;

-- name: ask_cancel
-- Somebody wants a running turn cancelled: its holder sees it when it looks. The first time counts.
UPDATE turn SET cancel_asked = :now
WHERE tenant = :tenant AND id = :id AND outcome = 'running' AND cancel_asked IS NULL;

-- name: read_stops
-- Which of the turns that a process runs it has to stop, each by its number in the list: somebody asked for that, or the
-- turn is no longer this process's. :held is the bytes of all their ids and tokens, one after the other.
SELECT held.number, turn.id IS NOT NULL AS mine
FROM generate_series(0, length(:held::bytea) / 32 - 1) AS held (number)
LEFT JOIN LATERAL (
  SELECT id, cancel_asked FROM turn
  WHERE tenant = :tenant AND id = substr(:held::bytea, held.number * 32 + 1, 16)
    AND token = substr(:held::bytea, held.number * 32 + 17, 16) AND outcome = 'running'
  OFFSET 0
) AS turn ON true
WHERE turn.id IS NULL OR turn.cancel_asked IS NOT NULL;

-- name: read_turn
-- One turn, with its process: where that is, and when it was last seen.
-- after: lock_turn
SELECT turn.*, holder.seen AS holder_seen, holder.host AS holder_host, holder.process AS holder_process,
  holder.since AS holder_since
FROM turn LEFT JOIN holder ON holder.id = turn.holder
WHERE turn.tenant = :tenant AND turn.id = :id;

-- name: lock_turn
-- Whoever writes waits here until no other writer has the turn, nor is about to make it. The turn's conversation is locked
-- before the turn, as everywhere: two writers never wait for each other.
WITH
  asked AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended(:tenant || ' turn ' || encode(:id::bytea, 'hex'), 0)) AS done
  ),
  taken AS MATERIALIZED (
    SELECT conversation.id FROM asked
    CROSS JOIN conversation
    WHERE conversation.tenant = :tenant
      AND conversation.id = (SELECT turn.conversation FROM turn WHERE turn.tenant = :tenant AND turn.id = :id)
    FOR NO KEY UPDATE OF conversation
  )
SELECT (SELECT count(*) FROM taken) AS conversations
FROM turn WHERE turn.tenant = :tenant AND turn.id = :id AND (SELECT count(*) FROM taken) >= 0 FOR NO KEY UPDATE OF turn;

-- name: turns_in_span
-- Committed turns and notes that end in a stretch of a segment, in order.
SELECT turn.*, NULL::bigint AS holder_seen, NULL::text AS holder_host, NULL::bigint AS holder_process,
  NULL::bigint AS holder_since
FROM turn
WHERE tenant = :tenant AND "end" BETWEEN :first AND :last AND (:notes::bigint <> 0 OR kind = 'turn')
ORDER BY "end"
LIMIT NULLIF(:limit::bigint, -1);

-- name: newest_turns_in_span
-- The same, the last one first.
SELECT turn.*, NULL::bigint AS holder_seen, NULL::text AS holder_host, NULL::bigint AS holder_process,
  NULL::bigint AS holder_since
FROM turn
WHERE tenant = :tenant AND "end" BETWEEN :first AND :last AND (:notes::bigint <> 0 OR kind = 'turn')
ORDER BY "end" DESC
LIMIT NULLIF(:limit::bigint, -1);

-- name: uncommitted_turns
-- A conversation's tries that are not history and started at an ordinal or later: those that ended otherwise, and the
-- open one.
SELECT turn.*, NULL::bigint AS holder_seen, NULL::text AS holder_host, NULL::bigint AS holder_process,
  NULL::bigint AS holder_since
FROM turn
WHERE tenant = :tenant AND conversation = :conversation AND outcome IN ('failed', 'cancelled')
  AND coalesce(base & 4294967295, 0) >= :since
UNION ALL
SELECT turn.*, holder.seen, holder.host, holder.process, holder.since
FROM turn LEFT JOIN holder ON holder.id = turn.holder
WHERE turn.tenant = :tenant AND turn.id = :open_turn AND coalesce(turn.base & 4294967295, 0) >= :since;

-- name: newest_tries
-- A conversation's tries that ended otherwise, started at an ordinal or later and began before a turn: the last one first.
SELECT turn.*, NULL::bigint AS holder_seen, NULL::text AS holder_host, NULL::bigint AS holder_process,
  NULL::bigint AS holder_since
FROM turn
WHERE tenant = :tenant AND conversation = :conversation AND outcome IN ('failed', 'cancelled') AND id < :before
  AND coalesce(base & 4294967295, 0) >= :since
ORDER BY id DESC
LIMIT NULLIF(:limit::bigint, -1);

-- name: state_of_turn
-- The folded state that a turn left behind.
SELECT state FROM turn WHERE tenant = :tenant AND id = :id;

-- name: insert_step
-- One journalled event of a running turn.
INSERT INTO step (tenant, turn, number, envelope, payload, salt, payload_digest) VALUES (:tenant, ?, ?, ?, ?, ?, ?);

-- name: read_steps
-- The journal of a turn, in the order of arrival.
SELECT envelope, payload FROM step WHERE tenant = :tenant AND turn = :turn ORDER BY number;

-- name: delete_steps
-- The journal of a turn that is committed, or whose conversation is deleted.
DELETE FROM step WHERE tenant = :tenant AND turn = :turn;

-- name: branches
-- The conversations of a family, drafts too.
SELECT id, head_totals, inherited, open_turn FROM conversation WHERE tenant = :tenant AND family = :family;

-- name: family_ledger
-- What deleted conversations of a family had spent in turns, and what was charged to any of its conversations.
SELECT usage FROM ledger WHERE tenant = :tenant AND family = :family;

-- name: tenant_branches
-- What the path of each of a tenant's conversations has cost, and how much of it is not its own.
SELECT head_totals, inherited FROM conversation WHERE tenant = :tenant;

-- name: tenant_tries
-- What a tenant's tries have spent that are not history: those that ended otherwise, and the open ones.
SELECT usage FROM turn WHERE tenant = :tenant AND outcome IN ('failed', 'cancelled')
UNION ALL
SELECT usage FROM turn WHERE tenant = :tenant AND outcome IN ('running', 'awaiting_approval');

-- name: tenant_ledger
-- All that stands in no turn of a tenant's.
SELECT usage FROM ledger WHERE tenant = :tenant;

-- name: write_off
-- A conversation is deleted; what its turns had spent stays.
INSERT INTO ledger (tenant, family, conversation, usage, deleted)
VALUES (:tenant, :family, :conversation, :usage, :now);

-- name: insert_charge
-- Something was spent beside history; beside any conversation, if family and conversation are empty.
INSERT INTO ledger (tenant, family, conversation, usage, deleted, id)
VALUES (:tenant, :family, :conversation, :usage, 0, :id);

-- name: find_charge
-- What an id was charged for.
SELECT conversation, usage FROM ledger WHERE tenant = :tenant AND id = :id;

-- name: charges
-- What was charged to a conversation; not to one before it that had its id and was deleted.
SELECT usage FROM ledger WHERE tenant = :tenant AND conversation = :conversation AND id IS NOT NULL AND deleted = 0;

-- name: close_charges
-- Their conversation is deleted; they stay.
UPDATE ledger SET deleted = :now
WHERE tenant = :tenant AND conversation = :conversation AND id IS NOT NULL AND deleted = 0;

-- name: delete_turn
-- A try of a deleted conversation.
DELETE FROM turn WHERE tenant = :tenant AND id = :id;

-- name: steps_with_digests
-- The journal of a turn as the chain of digests sees it.
SELECT number, envelope, payload, salt, payload_digest FROM step WHERE tenant = :tenant AND turn = :turn ORDER BY number;
