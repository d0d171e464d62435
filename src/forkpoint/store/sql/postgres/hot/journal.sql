-- name: journal_at_once
-- Steps of a running turn in one statement, if it is still mine, with all steps that I know of and without a budget. No
-- row: nothing is written.
WITH
  written AS (
    UPDATE turn
    SET usage = :usage, staged = :staged::bigint + :more::bigint, steps_digest = :steps
    WHERE tenant = :tenant AND id = :turn AND token = :token AND outcome || '' = 'running' AND staged = :staged::bigint
      AND budgeted = 0
    RETURNING steered
  ) /* parts */
SELECT steered FROM written;

-- name: journal_steps
-- A part of `journal_at_once`: the steps themselves.
, added AS (
  INSERT INTO step (tenant, turn, number, envelope, payload, salt, payload_digest)
  SELECT :tenant, :turn::bytea, :staged::bigint + given.number, given.envelope, given.payload, given.salt, given.payload_digest
  FROM written
  CROSS JOIN (VALUES /* rows */) AS given (number, envelope, payload, salt, payload_digest)
);
