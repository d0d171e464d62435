-- name: read_chain
-- Where a conversation's chain has come to. Why the next link is not made in the statement that moves it: RETURNING costs
-- more than this read, and no other writer can come between the two.
SELECT records, record_digest FROM conversation WHERE tenant = :tenant AND id = :id;

-- name: move_chain
-- One more record of a conversation.
UPDATE conversation SET records = :number, record_digest = :digest WHERE tenant = :tenant AND id = :id;

-- name: read_shared_chain
-- Where the chain of a family or a tenant has come to.
SELECT records, digest AS record_digest FROM chain WHERE tenant = :tenant AND chain = :chain;

-- name: move_shared_chain
-- One more record of such a chain. The first record begins the chain.
INSERT INTO chain (tenant, chain, records, digest) VALUES (:tenant, :chain, :number, :digest)
ON CONFLICT (tenant, chain) DO UPDATE SET records = :number, digest = :digest;

-- name: insert_record
-- A record, in the transaction that does what it tells of.
INSERT INTO record (tenant, chain, number, kind, subject, body, salt, digest)
VALUES (:tenant, :chain, :number, :kind, :subject, :body, :salt, :digest);

-- name: records_after
-- A page of a conversation's records.
SELECT number, kind, subject, body, digest FROM record
WHERE tenant = :tenant AND chain = :chain AND number > :after ORDER BY number LIMIT :limit;

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
  AND record.number > coalesce(conversation.born ->> '$.follows', 0);

-- name: forget_records_beside_turns
-- A conversation is gone; what is kept about its committed turns stays as long as they do.
UPDATE record SET body = NULL, salt = NULL WHERE chain = :chain AND tenant = :tenant AND kind NOT IN ('committed', 'note');

-- name: forget_salts
-- A conversation is gone: no text can be guessed from the digests in its records any more.
UPDATE record SET salt = NULL WHERE chain = :chain AND tenant = :tenant;

-- name: conversations_without_a_chain
-- What a program of an earlier format has written.
SELECT * FROM conversation WHERE record_digest = x'' ORDER BY tenant, id;

-- name: turns_to_adopt
-- The turns and notes of a conversation, in the order in which they began.
SELECT * FROM turn WHERE tenant = :tenant AND conversation = :conversation AND outcome <> 'running' ORDER BY started, id;

-- name: index_turns
-- Finds the turns of each conversation while all of them are read.
CREATE INDEX turn_adoption ON turn (tenant, conversation, started, id);

-- name: drop_index_of_turns
-- Nobody looks for turns like this afterwards.
DROP INDEX IF EXISTS turn_adoption;

-- name: close_charges_of_deleted_conversations
-- A program of format 1 that deleted a conversation did not know that it was charged.
UPDATE ledger SET deleted = (
  SELECT max(gone.deleted) FROM ledger AS gone
  WHERE gone.tenant = ledger.tenant AND gone.conversation = ledger.conversation AND gone.id IS NULL
)
WHERE id IS NOT NULL AND deleted = 0 AND conversation <> x''
  AND NOT EXISTS (SELECT 1 FROM conversation WHERE conversation.tenant = ledger.tenant AND conversation.id = ledger.conversation)
  AND EXISTS (
    SELECT 1 FROM ledger AS gone
    WHERE gone.tenant = ledger.tenant AND gone.conversation = ledger.conversation AND gone.id IS NULL
  );

-- name: deleted_conversations
-- What was written off of deleted conversations, and whether it is the last that had its id, and nobody has it now.
SELECT tenant, family, conversation, usage, deleted,
  row_number() OVER (PARTITION BY tenant, conversation ORDER BY deleted DESC, rowid DESC) = 1
    AND NOT EXISTS (SELECT 1 FROM conversation AS now WHERE now.tenant = ledger.tenant AND now.id = ledger.conversation)
    AS is_last
FROM ledger WHERE id IS NULL ORDER BY tenant, conversation, deleted, rowid;

-- name: charges_closed
-- What a conversation was charged that was deleted at a time.
SELECT usage FROM ledger
WHERE tenant = :tenant AND conversation = :conversation AND id IS NOT NULL AND deleted = :deleted;

-- name: begin_chain
-- The birth of a conversation that was made by a program of an earlier format.
UPDATE conversation SET born = :born, born_salt = :salt, first_digest = :digest, record_digest = :digest WHERE tenant = :tenant AND id = :id;

-- name: steps_without_a_digest
-- What a program of an earlier format has journalled.
SELECT turn, number, envelope, payload FROM step WHERE payload_digest = x'' ORDER BY turn, number;

-- name: seal_step
-- The digest of such a step.
UPDATE step SET salt = :salt, payload_digest = :digest WHERE turn = :turn AND number = :number;

-- name: sum_up_steps
-- The digest of all steps of such a turn.
UPDATE turn SET steps_digest = :digest WHERE id = :turn;

-- name: ledger_of_a_conversation
-- All that a conversation was charged; not what a deleted conversation with the same id was charged.
SELECT id, usage FROM ledger WHERE tenant = :tenant AND conversation = :conversation AND id IS NOT NULL AND deleted = 0;

-- name: charges_of_no_conversation
-- All that was charged to no conversation.
SELECT tenant, id, usage FROM ledger WHERE conversation = x'' AND id IS NOT NULL ORDER BY tenant, id;
