-- name: all_tenants
-- Whose conversations a store has.
SELECT DISTINCT tenant FROM conversation UNION SELECT DISTINCT tenant FROM segment ORDER BY tenant;

-- name: read_marks
-- What a store says of itself: its id, if it has one, and numbers that only grow.
SELECT meta.*, (SELECT seq FROM sqlite_sequence WHERE name = 'segment') AS segments FROM meta;

-- name: forget_all_holders
-- A restored store: no process that ran turns in the store of the backup runs them here.
DELETE FROM holder;
