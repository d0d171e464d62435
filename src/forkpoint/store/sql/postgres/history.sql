-- Paths are walked from base to base; no lineage is kept anywhere. CROSS JOIN LATERAL with OFFSET 0 keeps PostgreSQL from
-- planning the walk as a join of whole tables: each step is one look into an index (20 times as fast). And IS NOT DISTINCT
-- FROM keeps it from looking for a segment among all of its family's.

-- name: path_spans
-- The stretches that lead to a position, from its end back to the ordinal :after.
WITH RECURSIVE span (segment, first, last, base) AS (
  SELECT id, coalesce(base_ordinal, 0) + 1, :ordinal::bigint, base
  FROM segment WHERE tenant = :tenant AND id = :segment AND family IS NOT DISTINCT FROM :family
  UNION ALL
  SELECT below.id, coalesce(below.base_ordinal, 0) + 1, span.base & 4294967295, below.base
  FROM span
  CROSS JOIN LATERAL (
    SELECT id, base, base_ordinal FROM segment WHERE tenant = :tenant AND id = span.base >> 32 OFFSET 0
  ) AS below
  WHERE span.first > :after::bigint + 1
)
SELECT segment, first, last FROM span ORDER BY first DESC;

-- name: path_events
-- The events of a path after one ordinal and up to another, stretch by stretch. Order is the reader's business.
WITH RECURSIVE span (segment, first, last, base) AS (
  SELECT id, coalesce(base_ordinal, 0) + 1, :ordinal::bigint, base
  FROM segment WHERE tenant = :tenant AND id = :segment AND family IS NOT DISTINCT FROM :family
  UNION ALL
  SELECT below.id, coalesce(below.base_ordinal, 0) + 1, span.base & 4294967295, below.base
  FROM span
  CROSS JOIN LATERAL (
    SELECT id, base, base_ordinal FROM segment WHERE tenant = :tenant AND id = span.base >> 32 OFFSET 0
  ) AS below
  WHERE span.first > :after::bigint + 1
)
SELECT (event.segment << 32) | event.ordinal AS id, event.turn, event.envelope, event.payload
FROM span
CROSS JOIN LATERAL (
  SELECT segment, ordinal, turn, envelope, payload FROM event
  WHERE tenant = :tenant AND segment = span.segment
    AND ordinal BETWEEN greatest(span.first, :after::bigint + 1) AND least(span.last, :upto::bigint)
  OFFSET 0
) AS event;

-- name: events_between
-- The events of one segment, such as those of one turn.
SELECT (segment << 32) | ordinal AS id, turn, envelope, payload FROM event
WHERE tenant = :tenant AND segment = :first::bigint >> 32
  AND ordinal BETWEEN :first::bigint & 4294967295 AND :last::bigint & 4294967295
ORDER BY ordinal;

-- name: open_segment
-- A new run of events by one writer.
INSERT INTO segment (tenant, family, base, base_digest, landmarks)
VALUES (:tenant, :family, :base, :base_digest, 1) RETURNING id;

-- name: insert_event
-- One event of a commit.
INSERT INTO event (tenant, segment, ordinal, turn, envelope, payload, salt, payload_digest, chain_digest)
SELECT :tenant, given.id >> 32, given.id & 4294967295, given.turn, given.envelope, given.payload, given.salt,
  given.payload_digest, given.chain_digest
FROM (VALUES (?::bigint, ?::bytea, ?::text, ?::text, ?::bytea, ?::bytea, ?::bytea))
  AS given (id, turn, envelope, payload, salt, payload_digest, chain_digest);

-- name: event_at
-- What a head needs to know of the event it stands on.
SELECT turn, chain_digest FROM event
WHERE tenant = :tenant AND segment = :id::bigint >> 32 AND ordinal = :id::bigint & 4294967295;

-- name: links_between
-- Events of one segment as the chain of digests sees them.
SELECT (segment << 32) | ordinal AS id, turn, envelope, payload, salt, payload_digest, chain_digest FROM event
WHERE tenant = :tenant AND segment = :first::bigint >> 32
  AND ordinal BETWEEN :first::bigint & 4294967295 AND :last::bigint & 4294967295
ORDER BY ordinal LIMIT NULLIF(:limit::bigint, -1);

-- name: turn_behind_event
-- The turn or note that wrote an event.
SELECT id, base, "end", usage, totals, state_of, state, open_calls FROM turn WHERE tenant = :tenant AND id = :id;
