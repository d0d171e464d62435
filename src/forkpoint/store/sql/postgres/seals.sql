-- name: store_id
-- Which store this is.
SELECT store FROM meta;

-- name: sealed_up_to
-- The newest seal, and the record up to which the records of all tenants are sealed.
SELECT id, last, time FROM seal ORDER BY id DESC LIMIT 1;

-- name: newest_record
-- How far records go, and which transactions may still write one with a lower id: ids are given in the order of the
-- inserts, not of the commits. Who inserts has a lock on the table from before it gets its id until it has ended. So a
-- transaction that is not named here gets higher ids, or has ended.
SELECT coalesce((SELECT max(id) FROM record), 0) AS id, coalesce(string_agg(virtualtransaction, ' '), '') AS writers
FROM pg_locks
WHERE locktype = 'relation' AND relation = CAST('record' AS regclass) AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database());

-- name: open_writers
-- Which of these transactions have not ended.
SELECT coalesce(string_agg(virtualtransaction, ' '), '') AS writers
FROM pg_locks
WHERE locktype = 'relation' AND relation = CAST('record' AS regclass) AND mode = 'RowExclusiveLock' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND virtualtransaction = ANY (string_to_array(CAST(:writers AS text), ' '));

-- name: last_before_a_gap
-- The last record after another that has all ids before it: a missing one may belong to a transaction that is open.
SELECT coalesce(max(id), :after) AS id
FROM (
  SELECT id, row_number() OVER (ORDER BY id) AS place
  FROM (SELECT id FROM record WHERE id > :after AND id <= :upto ORDER BY id LIMIT :limit) AS record
) AS record
WHERE id = CAST(:after AS bigint) + place;

-- name: unsealed_records
-- The next records that no seal covers, of all tenants.
SELECT id, tenant, digest FROM record WHERE id > :after AND id <= :upto ORDER BY id LIMIT :limit;

-- name: last_seal
-- A tenant's newest seal.
SELECT * FROM seal WHERE tenant = :tenant ORDER BY number DESC LIMIT 1;

-- name: insert_seal
-- One more seal of a tenant.
INSERT INTO seal (tenant, number, store, first, last, count, root, previous, digest, time, leaves)
VALUES (:tenant, :number, :store, :first, :last, :count, :root, :previous, :digest, :time, :leaves);

-- name: last_store_seal
-- The newest seal of the whole store.
SELECT * FROM store_seal ORDER BY number DESC LIMIT 1;

-- name: insert_store_seal
-- One more seal of the whole store.
INSERT INTO store_seal (number, store, seal, count, root, previous, digest, time)
VALUES (:number, :store, :seal, :count, :root, :previous, :digest, :time);

-- name: last_seals
-- The last seal of each tenant that is not newer than a seal, in the order of the tenants: an index probe for each.
WITH RECURSIVE sealed (tenant) AS (
  SELECT min(tenant) FROM seal
  UNION ALL
  SELECT (SELECT min(tenant) FROM seal WHERE tenant > sealed.tenant) FROM sealed WHERE sealed.tenant IS NOT NULL
)
SELECT seal.tenant, seal.digest, seal.count
FROM sealed CROSS JOIN LATERAL (
  SELECT * FROM seal WHERE seal.tenant = sealed.tenant AND seal.id <= :seal ORDER BY number DESC LIMIT 1
) AS seal
ORDER BY seal.tenant;

-- name: sealed_tenants
-- All tenants that have a seal.
SELECT DISTINCT tenant FROM seal ORDER BY tenant;

-- name: seals_from
-- A tenant's seals from a number on.
SELECT * FROM seal WHERE tenant = :tenant AND number >= :number ORDER BY number LIMIT :limit;

-- name: seal_numbered
-- One seal of a tenant.
SELECT * FROM seal WHERE tenant = :tenant AND number = :number;

-- name: last_seal_within
-- The last seal of a tenant that is not newer than a seal of any tenant.
SELECT * FROM seal WHERE tenant = :tenant AND id <= :seal ORDER BY number DESC LIMIT 1;

-- name: store_seals_from
-- The seals of the whole store from a number on.
SELECT * FROM store_seal WHERE number >= :number ORDER BY number LIMIT :limit;

-- name: store_seal_numbered
-- One seal of the whole store.
SELECT * FROM store_seal WHERE number = :number;

-- name: sealed_records
-- A tenant's records between two others, as a seal covers them.
SELECT id, chain, number, digest FROM record
WHERE id > :after AND id <= :last AND tenant = :tenant ORDER BY id;

-- name: records_since
-- A tenant's records after another: which chain each belongs to, and what it is about.
SELECT id, chain, number, kind, subject FROM record
WHERE id > :after AND tenant = :tenant ORDER BY id LIMIT :limit;

-- name: name_of_conversation
-- How a conversation is called.
SELECT name FROM conversation WHERE tenant = :tenant AND id = :id;
