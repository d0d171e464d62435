-- name: store_id
-- Which store this is.
SELECT store FROM meta;

-- name: has_seals
-- Whether the store is of a format that has seals.
SELECT count(*) AS has_seals FROM sqlite_master WHERE type = 'table' AND name = 'seal';

-- name: sealed_up_to
-- The newest seal, and the record up to which the records of all tenants are sealed.
SELECT id, last, time FROM seal ORDER BY id DESC LIMIT 1;

-- name: newest_record
-- How far records go. There is one writer at a time, so nobody writes an earlier one any more.
SELECT coalesce(max(id), 0) AS id, '' AS writers FROM record;

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
FROM sealed JOIN seal ON seal.tenant = sealed.tenant
  AND seal.number = (SELECT max(number) FROM seal WHERE tenant = sealed.tenant AND id <= :seal)
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
SELECT id, chain, number, digest FROM record NOT INDEXED
WHERE id > :after AND id <= :last AND tenant = :tenant ORDER BY id;

-- name: records_since
-- A tenant's records after another: which chain each belongs to, and what it is about.
SELECT id, chain, number, kind, subject FROM record NOT INDEXED
WHERE id > :after AND tenant = :tenant ORDER BY id LIMIT :limit;

-- name: name_of_conversation
-- How a conversation is called.
SELECT name FROM conversation WHERE tenant = :tenant AND id = :id;
