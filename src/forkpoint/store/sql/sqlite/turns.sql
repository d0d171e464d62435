-- name: take_lock
-- The compare-and-set that begins a turn. No row: it is taken, or the revision is another, or nothing is there.
UPDATE conversation
SET open_turn = :turn
WHERE tenant = :tenant AND id = :id AND open_turn IS NULL AND (:revision IS NULL OR revision = :revision);

-- name: read_taken
-- The conversation that a turn has just taken, how often content was erased in the store, and whether the family has a
-- budget. Why the statement before
-- does not return it: RETURNING costs more.
SELECT conversation.*, meta.erasures,
  EXISTS (SELECT 1 FROM budget WHERE budget.tenant = :tenant AND budget.family = conversation.family) AS budgeted
FROM conversation CROSS JOIN meta WHERE tenant = :tenant AND id = :id;

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
  :usage, :totals, :state_of, :state, :open_calls, :retry_of, :now, :ended, :by, :record, :budgeted, 0, :since,
  :accepted
);

-- name: commit_turn
-- The compare-and-set that commits: running, mine, and with all steps and messages that I know of. No row: this writer
-- has lost the turn, or a step of its own that it never heard of; or somebody has just steered the turn, or the family
-- has got a budget.
UPDATE turn
SET outcome = 'committed', staged = 0, steps_digest = NULL, "end" = :end, record = :record, usage = :usage, totals = :totals, state_of = :state_of, state = :state,
    open_calls = :open_calls, holder = NULL, ended = :now,
    ran = coalesce(ran, 0) + coalesce(max(:now - since, 0), 0), since = NULL
WHERE id = :id AND token = :token AND outcome = 'running' AND staged = :staged AND steered IS :steered
    AND budgeted = :budgeted;

-- name: place_turn
-- Where a turn ends, if its segment was only opened by its commit.
UPDATE turn SET "end" = :end WHERE id = :id;

-- name: name_record
-- Which record tells of the commit of a turn, if it is another than the commit took it to be.
UPDATE turn SET record = :record WHERE id = :id;

-- name: journal_turn
-- The compare-and-set of a journal: what the turn has used, and how many steps it has from now on. Its writer hears what
-- was steered to the turn meanwhile.
UPDATE turn SET usage = :usage, staged = :staged + :more, steps_digest = :steps
WHERE id = :id AND token = :token AND outcome = 'running' AND staged = :staged AND budgeted = :budgeted
RETURNING steered;

-- name: change_steered
-- Another message was steered to a turn, or its journal has one of them now.
UPDATE turn SET steered = :steered WHERE id = :id;

-- name: end_turn
-- Ends or parks a running turn without moving the head, if it is still mine.
UPDATE turn
SET outcome = :outcome, error = :error, usage = :usage, holder = NULL, ended = :ended,
    ran = coalesce(ran, 0) + coalesce(max(:now - since, 0), 0), since = NULL
WHERE id = :id AND token = :token AND outcome = 'running';

-- name: close_turn
-- Ends a turn from its row, whatever its token.
UPDATE turn SET outcome = :outcome, error = :error, usage = :usage, holder = NULL, ended = :now, since = NULL WHERE id = :id;

-- name: let_go
-- A turn that was taken over, and whose new holder is no longer there: interrupted, as it was.
UPDATE turn SET holder = NULL, since = NULL WHERE id = :id;

-- name: take_over
-- A new holder and a new token; whoever had the old one writes nothing any more. Nobody has asked this holder to cancel.
-- :deaths is 1 if the turn is taken from a process that died, else 0.
UPDATE turn
SET outcome = 'running', holder = :holder, token = :token, error = NULL, ended = NULL, cancel_asked = NULL,
    budgeted = :budgeted, since = :now, takeovers = takeovers + :deaths
WHERE id = :id AND token = :old_token AND outcome = :outcome;

-- name: give_up
-- No process goes on with a turn by itself any more: it has one take-over more than is allowed. Whoever had it writes
-- nothing any more either.
UPDATE turn SET holder = NULL, since = NULL, token = :token, takeovers = takeovers + 1
WHERE id = :id AND token = :old_token AND outcome = 'running';

-- name: leave_open
-- A turn whose process could not go on, and that another one shall go on with: interrupted, with one take-over more.
-- Whoever had it writes nothing any more.
UPDATE turn SET holder = NULL, token = :token, usage = :usage, takeovers = takeovers + 1,
    ran = coalesce(ran, 0) + coalesce(max(:now - since, 0), 0), since = NULL
WHERE id = :id AND token = :old_token AND outcome = 'running';

-- name: accept_turn
-- Somebody is about to be told that a turn runs, who will ask later how it ended.
UPDATE turn SET accepted = 1 WHERE id = :id AND tenant = :tenant AND outcome = 'running';

-- name: list_orphans
-- The next turns that are open and that no process runs, of some tenants, in the order of their conversations; with
-- :accepted only those that somebody was promised. :dead lists, in hex, the processes that are known dead. A turn that
-- was given up has more than :most take-overs, and is left out.
SELECT conversation.tenant, conversation.id AS conversation, turn.id, turn.accepted, turn.takeovers, turn.cancel_asked
FROM conversation
CROSS JOIN turn ON turn.id = conversation.open_turn
LEFT JOIN holder ON holder.id = turn.holder
WHERE conversation.open_turn IS NOT NULL
  AND conversation.tenant BETWEEN :low AND :high AND (conversation.tenant, conversation.id) > (:tenant_after, :after)
  AND turn.outcome = 'running' AND turn.takeovers <= :most AND turn.accepted >= :accepted
  AND (holder.id IS NULL OR hex(holder.id) IN (SELECT value FROM json_each(:dead)))
ORDER BY conversation.tenant, conversation.id LIMIT :limit;

-- name: ask_cancel
-- Somebody wants a running turn cancelled: its holder sees it when it looks. The first time counts.
UPDATE turn SET cancel_asked = :now
WHERE id = :id AND tenant = :tenant AND outcome = 'running' AND cancel_asked IS NULL;

-- name: read_stops
-- Which of the turns that a process runs it has to stop, each by its number in the list: somebody asked for that, or the
-- turn is no longer this process's. :held is the bytes of all their ids and tokens, one after the other.
WITH RECURSIVE held (number) AS (
  SELECT 0 WHERE length(:held) > 0
  UNION ALL
  SELECT number + 1 FROM held WHERE (number + 1) * 32 < length(:held)
)
SELECT held.number, turn.id IS NOT NULL AS mine
FROM held
LEFT JOIN turn ON turn.id = substr(:held, held.number * 32 + 1, 16) AND turn.tenant = :tenant
  AND turn.token = substr(:held, held.number * 32 + 17, 16) AND turn.outcome = 'running'
WHERE turn.id IS NULL OR turn.cancel_asked IS NOT NULL;

-- name: read_turn
-- One turn, with its process: where that is, and when it was last seen.
SELECT turn.*, holder.seen AS holder_seen, holder.host AS holder_host, holder.process AS holder_process,
  holder.since AS holder_since
FROM turn LEFT JOIN holder ON holder.id = turn.holder
WHERE turn.tenant = :tenant AND turn.id = :id;

-- name: turns_in_span
-- Committed turns and notes that end in a stretch of a segment, in order.
SELECT turn.*, NULL AS holder_seen, NULL AS holder_host, NULL AS holder_process, NULL AS holder_since
FROM turn
WHERE "end" BETWEEN :first AND :last AND (:notes OR kind = 'turn')
ORDER BY "end"
LIMIT :limit;

-- name: newest_turns_in_span
-- The same, the last one first.
SELECT turn.*, NULL AS holder_seen, NULL AS holder_host, NULL AS holder_process, NULL AS holder_since
FROM turn
WHERE "end" BETWEEN :first AND :last AND (:notes OR kind = 'turn')
ORDER BY "end" DESC
LIMIT :limit;

-- name: uncommitted_turns
-- A conversation's tries that are not history and started at an ordinal or later: those that ended otherwise, and the
-- open one.
SELECT turn.*, NULL AS holder_seen, NULL AS holder_host, NULL AS holder_process, NULL AS holder_since
FROM turn
WHERE conversation = :conversation AND tenant = :tenant AND outcome IN ('failed', 'cancelled')
  AND coalesce(base & 4294967295, 0) >= :since
UNION ALL
SELECT turn.*, holder.seen, holder.host, holder.process, holder.since
FROM turn LEFT JOIN holder ON holder.id = turn.holder
WHERE turn.id = :open_turn AND turn.tenant = :tenant AND coalesce(turn.base & 4294967295, 0) >= :since;

-- name: newest_tries
-- A conversation's tries that ended otherwise, started at an ordinal or later and began before a turn: the last one first.
SELECT turn.*, NULL AS holder_seen, NULL AS holder_host, NULL AS holder_process, NULL AS holder_since
FROM turn
WHERE conversation = :conversation AND tenant = :tenant AND outcome IN ('failed', 'cancelled') AND id < :before
  AND coalesce(base & 4294967295, 0) >= :since
ORDER BY id DESC
LIMIT :limit;

-- name: state_of_turn
-- The folded state that a turn left behind.
SELECT state FROM turn WHERE id = :id;

-- name: insert_step
-- One journalled event of a running turn.
INSERT INTO step (turn, number, envelope, payload, salt, payload_digest) VALUES (?, ?, ?, ?, ?, ?);

-- name: read_steps
-- The journal of a turn, in the order of arrival.
SELECT envelope, payload FROM step WHERE turn = :turn ORDER BY number;

-- name: delete_steps
-- The journal of a turn that is committed, or whose conversation is deleted.
DELETE FROM step WHERE turn = :turn;

-- name: branches
-- The conversations of a family, drafts too.
SELECT id, head_totals, inherited, open_turn FROM conversation WHERE family = :family AND tenant = :tenant;

-- name: family_ledger
-- What deleted conversations of a family had spent in turns, and what was charged to any of its conversations.
SELECT usage FROM ledger WHERE family = :family AND tenant = :tenant;

-- name: tenant_branches
-- What the path of each of a tenant's conversations has cost, and how much of it is not its own.
SELECT head_totals, inherited FROM conversation WHERE tenant = :tenant;

-- name: tenant_tries
-- What a tenant's tries have spent that are not history: those that ended otherwise, and the open ones.
SELECT usage FROM turn WHERE outcome IN ('failed', 'cancelled') AND tenant = :tenant
UNION ALL
SELECT turn.usage
FROM conversation JOIN turn ON turn.id = conversation.open_turn
WHERE conversation.tenant = :tenant;

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
DELETE FROM turn WHERE id = :id;

-- name: steps_with_digests
-- The journal of a turn as the chain of digests sees it.
SELECT number, envelope, payload, salt, payload_digest FROM step WHERE turn = :turn ORDER BY number;
