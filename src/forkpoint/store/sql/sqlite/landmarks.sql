-- name: insert_landmark
-- An event of a commit that a run will have to find.
INSERT INTO landmark (id, kind, kept_from) VALUES (?, ?, ?);

-- name: insert_missing_landmark
-- The same for an event of long ago, unless it is collected by now, or another process was faster.
INSERT OR IGNORE INTO landmark (id, kind, kept_from)
SELECT given.id, given.kind, given.kept_from
FROM (SELECT ? AS id, ? AS kind, ? AS kept_from) AS given JOIN event ON event.id = given.id;

-- name: unmarked_segments
-- The segments on a path whose landmarks nobody has written down yet.
WITH RECURSIVE span (segment, first, base, landmarks) AS (
  SELECT id, coalesce(base & 4294967295, 0) + 1, base, landmarks
  FROM segment WHERE id = :segment AND family = :family AND tenant = :tenant
  UNION ALL
  SELECT segment.id, coalesce(segment.base & 4294967295, 0) + 1, segment.base, segment.landmarks
  FROM span JOIN segment ON segment.id = span.base >> 32
  WHERE span.first > :after + 1
)
SELECT segment FROM span WHERE landmarks IS NULL;

-- name: path_landmarks
-- The landmarks of some kinds on a path, after one ordinal and up to another.
WITH RECURSIVE span (segment, first, last, base) AS (
  SELECT id, coalesce(base & 4294967295, 0) + 1, :ordinal, base
  FROM segment WHERE id = :segment AND family = :family AND tenant = :tenant
  UNION ALL
  SELECT segment.id, coalesce(segment.base & 4294967295, 0) + 1, span.base & 4294967295, segment.base
  FROM span JOIN segment ON segment.id = span.base >> 32
  WHERE span.first > :after + 1
)
SELECT landmark.id, landmark.kind, landmark.kept_from
FROM span CROSS JOIN landmark
WHERE landmark.id BETWEEN (span.segment << 32) + max(span.first, :after + 1)
                      AND (span.segment << 32) + min(span.last, :upto)
  AND landmark.kind IN (SELECT value FROM json_each(:kinds));

-- name: event_of_landmark
-- One event by its position.
SELECT id, turn, envelope, payload FROM event WHERE id = ?;

-- name: landmarks_between
-- The landmarks of a stretch of one segment.
SELECT id, kind, kept_from FROM landmark WHERE id BETWEEN :first AND :last ORDER BY id;

-- name: has_landmarks
-- Whether the landmarks of a segment are written down.
SELECT landmarks FROM segment WHERE id = :segment;

-- name: segment_contents
-- All events of a segment, one after another: its landmarks are looked for.
SELECT id, envelope, payload FROM event WHERE id BETWEEN :first AND :last;

-- name: mark_segment
-- From now on nobody has to read a segment to find its landmarks.
UPDATE segment SET landmarks = 1 WHERE id = :segment;
