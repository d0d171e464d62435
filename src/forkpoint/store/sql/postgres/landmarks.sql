-- name: insert_landmark
-- An event of a commit that a run will have to find.
INSERT INTO landmark (tenant, id, kind, kept_from) VALUES (:tenant, ?, ?, ?);

-- name: insert_missing_landmark
-- The same for an event of long ago, unless it is collected by now, or another process was faster.
INSERT INTO landmark (tenant, id, kind, kept_from)
SELECT event.tenant, given.id, given.kind, given.kept_from
FROM (VALUES (?::bigint, ?::text, ?::bigint)) AS given (id, kind, kept_from)
JOIN event ON event.tenant = :tenant AND event.segment = given.id >> 32 AND event.ordinal = given.id & 4294967295
ON CONFLICT DO NOTHING;

-- name: unmarked_segments
-- The segments on a path whose landmarks nobody has written down yet.
WITH RECURSIVE span (segment, first, base, landmarks) AS (
  SELECT id, coalesce(base_ordinal, 0) + 1, base, landmarks
  FROM segment WHERE tenant = :tenant AND id = :segment AND family IS NOT DISTINCT FROM :family
  UNION ALL
  SELECT below.id, coalesce(below.base_ordinal, 0) + 1, below.base, below.landmarks
  FROM span
  CROSS JOIN LATERAL (
    SELECT id, base, base_ordinal, landmarks FROM segment WHERE tenant = :tenant AND id = span.base >> 32 OFFSET 0
  ) AS below
  WHERE span.first > :after::bigint + 1
)
SELECT segment FROM span WHERE landmarks IS NULL;

-- name: path_landmarks
-- The landmarks of some kinds on a path, after one ordinal and up to another.
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
SELECT landmark.id, landmark.kind, landmark.kept_from
FROM span
CROSS JOIN LATERAL (
  SELECT id, kind, kept_from FROM landmark
  WHERE tenant = :tenant AND segment = span.segment
    AND ordinal BETWEEN greatest(span.first, :after::bigint + 1) AND least(span.last, :upto::bigint)
  OFFSET 0
) AS landmark
WHERE landmark.kind IN (SELECT json_array_elements_text(:kinds::json));

-- name: event_of_landmark
-- One event by its position.
SELECT (event.segment << 32) | event.ordinal AS id, event.turn, event.envelope, event.payload
FROM (VALUES (?::bigint)) AS given (id)
JOIN event ON event.tenant = :tenant AND event.segment = given.id >> 32 AND event.ordinal = given.id & 4294967295;

-- name: landmarks_between
-- The landmarks of a stretch of one segment.
SELECT id, kind, kept_from FROM landmark
WHERE tenant = :tenant AND segment = :first::bigint >> 32
  AND ordinal BETWEEN :first::bigint & 4294967295 AND :last::bigint & 4294967295
ORDER BY ordinal;

-- name: has_landmarks
-- Whether the landmarks of a segment are written down.
SELECT landmarks FROM segment WHERE tenant = :tenant AND id = :segment;

-- name: segment_contents
-- All events of a segment, one after another: its landmarks are looked for.
SELECT (segment << 32) | ordinal AS id, envelope, payload FROM event
WHERE tenant = :tenant AND segment = :first::bigint >> 32
  AND ordinal BETWEEN :first::bigint & 4294967295 AND :last::bigint & 4294967295;

-- name: mark_segment
-- From now on nobody has to read a segment to find its landmarks.
UPDATE segment SET landmarks = 1 WHERE tenant = :tenant AND id = :segment;
