-- name: read_chain
-- Where a conversation's chain has come to. A writer has the conversation until its transaction ends, so that nobody else
-- makes the same link.
-- locks: conversation
SELECT records, record_digest FROM conversation WHERE tenant = :tenant AND id = :id;

-- name: move_chain
-- One more record of a conversation.
UPDATE conversation SET records = :number, record_digest = :digest WHERE tenant = :tenant AND id = :id;

-- name: read_shared_chain
-- Where the chain of a family or a tenant has come to.
-- locks: chain
SELECT records, digest AS record_digest FROM chain WHERE tenant = :tenant AND chain = :chain;

-- name: move_shared_chain
-- One more record of such a chain. The first record begins the chain. If two do so at once, the second one's record has a
-- number that is taken, and its transaction runs again.
INSERT INTO chain (tenant, chain, records, digest) VALUES (:tenant, :chain, :number, :digest)
ON CONFLICT (tenant, chain) DO UPDATE SET records = excluded.records, digest = excluded.digest
WHERE chain.records = excluded.records - 1;

-- name: insert_record
-- A record, in the transaction that does what it tells of.
INSERT INTO record (tenant, chain, number, kind, subject, body, salt, digest)
VALUES (:tenant, :chain, :number, :kind, :subject, :body, :salt, :digest);

-- name: records_after
-- A page of a conversation's records.
SELECT number, kind, subject, body, digest FROM record
WHERE tenant = :tenant AND chain = :chain AND number > :after ORDER BY number LIMIT NULLIF(:limit::bigint, -1);

-- name: last_number
-- How many records a conversation with this id had that is deleted.
SELECT coalesce(max(number), 0) AS number FROM record WHERE tenant = :tenant AND chain = :chain;

-- name: forget_tries
-- The turn is gone, and so are its conversation and what was kept about the times that the turn did not commit. The digests
-- stay. A charge or a conversation may have the same id.
UPDATE record SET body = NULL, salt = NULL
WHERE subject = :subject AND tenant = :tenant AND kind NOT IN ('committed', 'note')
  AND kind IN ('failed', 'cancelled', 'awaiting_approval', 'resumed', 'steered');

-- name: forget_commit
-- The same of the record that tells of its commit.
UPDATE record SET body = NULL, salt = NULL WHERE tenant = :tenant AND chain = :chain AND number = :number;

-- name: forget_salts_of_tries
-- The turn is gone, its conversation is not: no text can be guessed from the digests in the records about the turn.
UPDATE record SET salt = NULL
WHERE subject = :subject AND tenant = :tenant AND kind NOT IN ('committed', 'note')
  AND kind IN ('failed', 'cancelled', 'awaiting_approval', 'resumed', 'steered');

-- name: forget_salt_of_commit
-- The same of the record that tells of its commit.
UPDATE record SET salt = NULL WHERE tenant = :tenant AND chain = :chain AND number = :number;

-- name: conversation_that_left_a_turn
-- The conversation that committed a turn, if it is still there and not another one under the same id; and the record.
SELECT conversation.*, record.body
FROM record
JOIN conversation ON conversation.tenant = record.tenant AND conversation.id = substr(record.chain, 2)
WHERE record.tenant = :tenant AND record.chain = :chain AND record.number = :number
  AND record.number > coalesce((nullif(conversation.born, '')::json ->> 'follows')::bigint, 0);

-- name: forget_records_beside_turns
-- A conversation is gone; what is kept about its committed turns stays as long as they do.
UPDATE record SET body = NULL, salt = NULL WHERE tenant = :tenant AND chain = :chain AND kind NOT IN ('committed', 'note');

-- name: forget_salts
-- A conversation is gone: no text can be guessed from the digests in its records any more.
UPDATE record SET salt = NULL WHERE tenant = :tenant AND chain = :chain;
