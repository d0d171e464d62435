-- name: has_budgets
-- Whether a family has any budget at all.
SELECT 1 FROM budget WHERE tenant = :tenant AND family = :family LIMIT 1;

-- name: budget_of
-- The budget of a conversation, or of a family. Whoever reserves or counts locks the budgets that it needs one by one,
-- a conversation's before those above it and the family's last, so that nobody waits in a circle.
-- locks: budget
SELECT * FROM budget WHERE tenant = :tenant AND family = :family AND scope = :scope AND subject = :subject;

-- name: budgets_of_a_family
-- All budgets in a family.
SELECT * FROM budget WHERE tenant = :tenant AND family = :family ORDER BY id;

-- name: families_with_budgets
-- Whose budgets verify looks at: also those whose rows were removed.
SELECT family FROM budget WHERE tenant = :tenant
UNION
SELECT substr(chain, 2) FROM record
WHERE tenant = :tenant AND kind = 'budget' AND chain >= '\x66'::bytea AND chain < '\x67'::bytea;

-- name: budget_records
-- Which budgets were set and removed in a family, according to its records.
SELECT body FROM record WHERE tenant = :tenant AND chain = :chain AND kind = 'budget' AND body IS NOT NULL ORDER BY number;

-- name: payer_of
-- Whether a conversation works beneath another one, and in which family it is.
SELECT family, lineage_kind, lineage_source FROM conversation WHERE tenant = :tenant AND id = :id;

-- name: put_budget
-- The limits of a budget; all that was spent before counts.
INSERT INTO budget (
  tenant, family, scope, subject, apart, most_nanodollars, most_tokens, most_turns, most_micros,
  spent_nanodollars, spent_tokens, spent_turns, spent_micros
) VALUES (
  :tenant, :family, :scope, :subject, CAST(:apart AS int), :most_nanodollars, :most_tokens, :most_turns, :most_micros,
  :nanodollars, :tokens, :turns, :micros
)
ON CONFLICT (tenant, family, scope, subject) DO UPDATE
SET most_nanodollars = excluded.most_nanodollars, most_tokens = excluded.most_tokens,
    most_turns = excluded.most_turns, most_micros = excluded.most_micros;

-- name: delete_budget
-- A budget that somebody removed, with what was reserved of it.
DELETE FROM budget WHERE tenant = :tenant AND id = :id;

-- name: restate_spent
-- What was spent of a budget, counted anew.
UPDATE budget
SET spent_nanodollars = :nanodollars, spent_tokens = :tokens, spent_turns = :turns, spent_micros = :micros
WHERE tenant = :tenant AND id = :id;

-- name: add_spent
-- Something was spent of a budget.
UPDATE budget
SET spent_nanodollars = spent_nanodollars + :nanodollars, spent_tokens = spent_tokens + :tokens,
    spent_turns = spent_turns + :turns, spent_micros = spent_micros + :micros
WHERE tenant = :tenant AND id = :id;

-- name: add_reserved
-- Something is reserved of a budget, or given back. Whether it fits was looked up in the same transaction.
UPDATE budget
SET reserved_nanodollars = reserved_nanodollars + :nanodollars, reserved_tokens = reserved_tokens + :tokens,
    reserved_turns = reserved_turns + :turns, reserved_micros = reserved_micros + :micros
WHERE tenant = :tenant AND id = :id;

-- name: insert_reservation
-- What something that is under way may still cost, of one budget.
INSERT INTO reservation (tenant, owner, kind, budget, holder, nanodollars, tokens, turns, micros)
VALUES (:tenant, :owner, :kind, :id, :holder, :nanodollars, :tokens, :turns, :micros);

-- name: reservations_by
-- What is reserved for a turn, a charge or a note, in the order in which budgets are locked. The owner may give it back
-- at the moment in which another process takes the owner for dead: only one of the two finds it.
-- locks: reservation
SELECT reservation.* FROM reservation
JOIN budget ON budget.tenant = reservation.tenant AND budget.id = reservation.budget
WHERE reservation.tenant = :tenant AND reservation.owner = :owner
  AND (CAST(:kind AS text) IS NULL OR reservation.kind = CAST(:kind AS text))
ORDER BY budget.scope, budget.subject DESC;

-- name: delete_reservations
-- It is over, or its process is gone.
DELETE FROM reservation
WHERE tenant = :tenant AND owner = :owner AND (CAST(:kind AS text) IS NULL OR kind = CAST(:kind AS text));

-- name: reservations_of
-- What is reserved of a budget, with the process that reserved it.
SELECT reservation.*, holder.seen FROM reservation LEFT JOIN holder ON holder.id = reservation.holder
WHERE reservation.tenant = :tenant AND reservation.budget = :id;

-- name: reserved_sums
-- What the reservations of a budget come to.
SELECT CAST(coalesce(sum(nanodollars), 0) AS bigint) AS nanodollars, CAST(coalesce(sum(tokens), 0) AS bigint) AS tokens,
  CAST(coalesce(sum(turns), 0) AS bigint) AS turns, CAST(coalesce(sum(micros), 0) AS bigint) AS micros
FROM reservation WHERE tenant = :tenant AND budget = :id;

-- name: count_in_open_turns
-- From now on the turns that are open in a family look for budgets with each write.
UPDATE turn SET budgeted = 1
WHERE tenant = :tenant AND id IN (
  SELECT open_turn FROM conversation WHERE tenant = :tenant AND family = :family AND open_turn IS NOT NULL
);

-- name: renew_time
-- The time that a running turn has used is counted.
UPDATE turn SET ran = coalesce(ran, 0) + :micros, since = :now WHERE tenant = :tenant AND id = :id;

-- name: members_to_count
-- The conversations of a family, with what is needed to say who pays for them.
SELECT id, lineage_kind, lineage_source, head_totals, inherited, open_turn, created
FROM conversation WHERE tenant = :tenant AND family = :family;

-- name: turns_to_count
-- How many turns of each conversation in a family have asked a model, and how long they ran. A conversation with the same
-- id that was deleted has had others.
SELECT turn.conversation,
  count(*) FILTER (WHERE CAST(CAST(turn.usage AS json) ->> 'calls' AS bigint) > 0) AS turns,
  CAST(sum(coalesce(turn.ran, greatest(coalesce(turn.ended, turn.started) - turn.started, 0))) AS bigint) AS micros
FROM (
  SELECT turn.* FROM segment
  JOIN turn ON turn.tenant = segment.tenant
    AND turn."end" BETWEEN segment.id << 32 AND (segment.id << 32) + 4294967295
  WHERE segment.family = :family AND segment.tenant = :tenant
  UNION ALL
  SELECT turn.* FROM conversation
  JOIN turn ON turn.tenant = conversation.tenant AND turn.conversation = conversation.id
  WHERE conversation.family = :family AND conversation.tenant = :tenant AND turn.outcome IN ('failed', 'cancelled')
  UNION ALL
  SELECT turn.* FROM conversation
  JOIN turn ON turn.tenant = conversation.tenant AND turn.id = conversation.open_turn
  WHERE conversation.family = :family AND conversation.tenant = :tenant
) AS turn
JOIN conversation ON conversation.tenant = :tenant AND conversation.id = turn.conversation
WHERE turn.kind = 'turn' AND turn.started >= conversation.created
GROUP BY turn.conversation;

-- name: has_write_offs
-- Whether a conversation of a family was deleted.
SELECT 1 FROM ledger WHERE tenant = :tenant AND family = :family AND id IS NULL LIMIT 1;

-- name: keep_reservation
-- A part of what was reserved is given back.
UPDATE reservation SET nanodollars = :nanodollars, tokens = :tokens, turns = :turns, micros = :micros
WHERE tenant = :tenant AND owner = :owner AND kind = :kind AND budget = :id;
