-- name: all_tenants
-- Whose conversations a store has.
SELECT DISTINCT tenant FROM conversation UNION SELECT DISTINCT tenant FROM segment ORDER BY tenant;

-- name: forget_all_holders
-- A restored store: no process that ran turns in the store of the backup runs them here.
DELETE FROM holder;
