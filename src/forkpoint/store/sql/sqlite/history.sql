-- name: path_spans
-- The stretches that lead to a position, from its end back to the ordinal :after. No lineage is kept
-- anywhere: this walks from base to base.
WITH RECURSIVE span (segment, first, last, base) AS (
  SELECT id, coalesce(base & 4294967295, 0) + 1, :ordinal, base
  FROM segment WHERE id = :segment AND family = :family AND tenant = :tenant
  UNION ALL
  SELECT segment.id, coalesce(segment.base & 4294967295, 0) + 1, span.base & 4294967295, segment.base
  FROM span JOIN segment ON segment.id = span.base >> 32
  WHERE span.first > :after + 1
)
SELECT segment, first, last FROM span;

-- name: path_events
-- The events of a path after one ordinal and up to another, stretch by stretch. CROSS JOIN keeps SQLite from
-- turning the join around; order is the reader's business, which is cheaper than a sort here.
WITH RECURSIVE span (segment, first, last, base) AS (
  SELECT id, coalesce(base & 4294967295, 0) + 1, :ordinal, base
  FROM segment WHERE id = :segment AND family = :family AND tenant = :tenant
  UNION ALL
  SELECT segment.id, coalesce(segment.base & 4294967295, 0) + 1, span.base & 4294967295, segment.base
  FROM span JOIN segment ON segment.id = span.base >> 32
  WHERE span.first > :after + 1
)
SELECT event.id, event.turn, event.envelope, event.payload
FROM span CROSS JOIN event
WHERE event.id BETWEEN (span.segment << 32) + max(span.first, :after + 1)
                   AND (span.segment << 32) + min(span.last, :upto);

-- name: events_between
-- The events of one segment, such as those of one turn.
SELECT id, turn, envelope, payload FROM event WHERE id BETWEEN :first AND :last ORDER BY id;

-- name: open_segment
-- A new run of events by one writer.
INSERT INTO segment (tenant, family, base, base_digest, landmarks)
VALUES (:tenant, :family, :base, :base_digest, 1);

-- name: insert_event
-- One event of a commit.
INSERT INTO event (id, turn, envelope, payload, salt, payload_digest, chain_digest)
VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: event_at
-- What a head needs to know of the event it stands on.
SELECT turn, chain_digest FROM event WHERE id = :id;

-- name: links_between
-- Events of one segment as the chain of digests sees them.
SELECT id, turn, envelope, payload, salt, payload_digest, chain_digest
FROM event WHERE id BETWEEN :first AND :last ORDER BY id LIMIT :limit;

-- name: turn_behind_event
-- The turn or note that wrote an event.
SELECT id, base, "end", usage, totals, state_of, state, open_calls FROM turn WHERE id = :id;
