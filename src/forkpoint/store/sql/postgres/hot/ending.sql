-- name: end_at_once
-- Ends a turn that failed or was cancelled, in one statement; `held` is the guard, as in `commit_at_once`. The turn is to
-- stand as the record says of it, so its row must say what I know.
WITH
  held AS MATERIALIZED (
    SELECT conversation.records, conversation.record_digest
    FROM conversation JOIN turn ON turn.tenant = conversation.tenant AND turn.id = conversation.open_turn
    WHERE conversation.tenant = :tenant AND conversation.id = :conversation AND conversation.open_turn = :turn
      AND turn.tenant = :tenant AND turn.id = :turn AND turn.token = :token AND turn.outcome || '' = 'running'
      AND turn.staged = :staged AND turn.steered IS NOT DISTINCT FROM :steered::text AND turn.budgeted = 0
      AND turn.usage = :spent AND turn.steps_digest IS NOT DISTINCT FROM :steps::bytea
      AND turn.input IS NOT DISTINCT FROM :input::text
    FOR NO KEY UPDATE OF conversation, turn
  ),
  place AS MATERIALIZED (
    SELECT held.records + 1 AS number,
      sha256(
        'forkpoint record 1'::bytea || held.record_digest || :chain::bytea || int8send(held.records + 1) || :body_digest::bytea
      ) AS digest
    FROM held
  ),
  told AS (
    INSERT INTO record (tenant, chain, number, kind, subject, body, salt, digest)
    SELECT :tenant, :chain::bytea, place.number, :outcome::text, :turn::bytea, :body::text, :salt::bytea, place.digest
    FROM place
  ),
  freed AS (
    DELETE FROM idempotency USING place
    WHERE idempotency.tenant = :tenant AND idempotency.target = :turn AND idempotency.operation NOT IN ('rewind', 'keep', 'steer')
  ),
  released AS (
    UPDATE conversation
    SET open_turn = NULL, updated = :now::bigint, records = place.number, record_digest = place.digest
    FROM place WHERE conversation.tenant = :tenant AND conversation.id = :conversation
  ),
  ended AS (
    UPDATE turn
    SET outcome = :outcome, error = :error, usage = :usage, holder = NULL, ended = :now::bigint,
      ran = coalesce(turn.ran, 0) + greatest(:now::bigint - turn.since, 0), since = NULL
    FROM place WHERE turn.tenant = :tenant AND turn.id = :turn
    RETURNING turn.*
  )
SELECT ended.* FROM ended;
