-- Steers: messages that were sent to a turn while it was open, until the turn has them among its steps.
--
-- A program of an earlier format must not write here: it would commit a turn without the messages that wait for it.

ALTER TABLE turn ADD COLUMN steered TEXT;  -- a JSON array, in the order in which they came; NULL: nobody has sent one

CREATE INDEX idempotency_steer ON idempotency (tenant, subject) WHERE operation = 'steer';

UPDATE meta SET writable_from = 13;
