-- name: read_marks
-- What a store says of itself: its id, if it has one, and numbers that only grow.
SELECT meta.*, (SELECT seq FROM sqlite_sequence WHERE name = 'segment') AS segments FROM meta;
