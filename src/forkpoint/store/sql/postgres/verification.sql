-- name: conversations_to_verify
-- All conversations of a tenant, in the order of their chains.
SELECT * FROM conversation WHERE tenant = :tenant ORDER BY id;

-- name: records_of_conversations
-- The records of conversations, chain by chain, each with the turn that it is about and the events that the turn names.
SELECT record.id, record.chain, record.number, record.kind, record.subject, record.body, record.salt, record.digest,
  turn.id AS turn, turn.tenant AS turn_tenant, turn.conversation AS turn_conversation, turn.kind AS turn_kind,
  turn.outcome, turn.base, turn."end", turn.input, turn.error, turn.usage, turn.started, turn.ended, turn."by",
  turn.retry_of, turn.steps_digest, turn.steered, base.chain_digest AS base_digest, last.chain_digest AS end_digest
FROM record
LEFT JOIN turn ON turn.tenant = record.tenant AND turn.id = record.subject
  AND record.kind IN ('committed', 'note', 'failed', 'cancelled', 'awaiting_approval', 'resumed', 'steered')
LEFT JOIN event AS base
  ON base.tenant = turn.tenant AND base.segment = turn.base >> 32 AND base.ordinal = turn.base & 4294967295
LEFT JOIN event AS last
  ON last.tenant = turn.tenant AND last.segment = turn."end" >> 32 AND last.ordinal = turn."end" & 4294967295
WHERE record.tenant = :tenant AND record.chain >= :first AND record.chain < :below
  AND record.number BETWEEN :least AND :most
ORDER BY record.chain, record.number;

-- name: records_beside_conversations
-- The records of families and of the tenant, chain by chain.
SELECT id, chain, number, kind, subject, body, salt, digest
FROM record WHERE tenant = :tenant AND chain >= :first AND chain < :below
ORDER BY chain, number;

-- name: chains_beside_conversations
-- Where the chains of families and of the tenant have come to.
SELECT chain, records, digest FROM chain WHERE tenant = :tenant AND chain >= :first AND chain < :below ORDER BY chain;

-- name: digest_of_record
-- The digest of one record.
SELECT digest FROM record WHERE tenant = :tenant AND chain = :chain AND number = :number;

-- name: count_records
-- How many records a tenant has.
SELECT count(*) AS records FROM record WHERE tenant = :tenant;

-- name: numbers_of_records
-- A transaction that is undone leaves a gap among the numbers, so that they do not say how many records there must be.
SELECT count(*) AS records, count(*) AS last FROM record;

-- name: turn_of_events
-- The turn or note that wrote an event, with all that its events must agree with.
SELECT id, tenant, outcome, base, "end", usage, totals, state_of, state, open_calls
FROM turn WHERE tenant = :tenant AND id = :id;

-- name: turns_that_nothing_vouches_for
-- Turns without a record, and open turns and tries that no conversation has.
SELECT id, outcome, untold, abandoned, closed
FROM (
  SELECT turn.id, turn.outcome,
    NOT EXISTS (
      SELECT 1 FROM record
      WHERE record.subject = turn.id AND record.tenant = turn.tenant AND record.body IS NOT NULL
        AND record.kind IN ('committed', 'note', 'failed', 'cancelled', 'awaiting_approval', 'resumed', 'steered')
    ) AS untold,
    conversation.id IS NULL AS abandoned,
    conversation.open_turn IS DISTINCT FROM turn.id AS closed
  FROM turn
  LEFT JOIN conversation ON conversation.tenant = turn.tenant AND conversation.id = turn.conversation
  WHERE turn.tenant = :tenant AND (CAST(:conversation AS bytea) IS NULL OR turn.conversation = CAST(:conversation AS bytea))
) AS turn
WHERE (outcome <> 'running' AND untold)
  OR (outcome <> 'committed' AND abandoned)
  OR (outcome IN ('running', 'awaiting_approval') AND closed);

-- name: open_turn_of
-- The turn that a conversation says is open, with how it stands.
SELECT id, conversation, outcome FROM turn WHERE id = :id AND tenant = :tenant;

-- name: tries_to_verify
-- The turns that are not committed, with what was true where they began, according to their rows.
SELECT id, outcome, base, usage, totals, state_of, open_calls, staged, steps_digest, "end", state
FROM turn
WHERE tenant = :tenant AND outcome <> 'committed'
  AND (CAST(:conversation AS bytea) IS NULL OR conversation = CAST(:conversation AS bytea));

-- name: steps_of_no_try
-- Journals that no turn has which could go on, and how many steps each has.
SELECT step.turn, count(*) AS steps
FROM step LEFT JOIN turn ON turn.tenant = step.tenant AND turn.id = step.turn
WHERE step.tenant = :tenant AND (turn.id IS NULL OR turn.outcome = 'committed')
GROUP BY step.turn;

-- name: charge_of_record
-- The row of the ledger that a record is about.
SELECT family, conversation, usage, deleted FROM ledger WHERE tenant = :tenant AND id = :id;

-- name: charges_without_a_record
-- Charges of conversations that are there, or of none, which no record tells of.
SELECT id FROM ledger
WHERE tenant = :tenant AND id IS NOT NULL AND deleted = 0
  AND (CAST(:conversation AS bytea) IS NULL OR conversation = CAST(:conversation AS bytea))
  AND NOT EXISTS (
    SELECT 1 FROM record
    WHERE record.subject = ledger.id AND record.tenant = ledger.tenant AND record.kind = 'charged'
      AND record.body IS NOT NULL
  );

-- name: written_off
-- What is in the ledger of conversations that were deleted.
SELECT family, conversation, deleted, usage, id FROM ledger WHERE tenant = :tenant AND (deleted <> 0 OR id IS NULL);

-- name: records_of_chain
-- The records of one chain after a number.
SELECT id, chain, number, kind, subject, body, salt, digest
FROM record WHERE tenant = :tenant AND chain = :chain AND number > :number ORDER BY number;

-- name: end_of_chain
-- Where the chain of a family or of the tenant has come to.
SELECT records, digest FROM chain WHERE tenant = :tenant AND chain = :chain;

-- name: tags_that_differ
-- Conversations whose tags are not those by which lists find them.
WITH
  own AS (
    SELECT conversation.id, entry.key, entry.value, used
    FROM conversation CROSS JOIN LATERAL tag_entries(conversation.tags) AS entry
    WHERE tenant = :tenant AND conversation.tags <> '{}'
      AND (CAST(:conversation AS bytea) IS NULL OR conversation.id = CAST(:conversation AS bytea))
  ),
  listed AS (
    SELECT conversation AS id, key, value, used FROM tag
    WHERE tenant = :tenant AND (CAST(:conversation AS bytea) IS NULL OR conversation = CAST(:conversation AS bytea))
  )
SELECT id FROM (SELECT * FROM own EXCEPT SELECT * FROM listed) AS missing
UNION
SELECT id FROM (SELECT * FROM listed EXCEPT SELECT * FROM own) AS extra;

-- name: copies_between
-- Which events of a stretch are known to repeat others.
SELECT position, source_turn, source_step FROM copy
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32 AND position BETWEEN :first AND :last;

-- name: last_event_between
-- The last event of a stretch of a segment that is there: the end of it may have been collected.
SELECT max(segment << 32 | ordinal) AS last FROM event
WHERE tenant = :tenant AND segment = CAST(:first AS bigint) >> 32
  AND ordinal BETWEEN CAST(:first AS bigint) & 4294967295 AND CAST(:last AS bigint) & 4294967295;
