-- name: commit_at_once
-- A commit in one statement. `held` is the guard: it locks the conversation, then the turn, and has a row only if the turn
-- is still mine, with all steps and messages that I know of, and the head where the turn began. Everything else joins it,
-- so without that row nothing is written. The record is chained to the last one as it is under the lock: a charge or a new
-- name beside the turn does not matter. (`outcome || ''` keeps the planner from the index of all open turns.)
WITH
  held AS MATERIALIZED (
    SELECT conversation.open_segment, conversation.records, conversation.record_digest
    FROM conversation JOIN turn ON turn.tenant = conversation.tenant AND turn.id = conversation.open_turn
    WHERE conversation.tenant = :tenant AND conversation.id = :conversation AND conversation.open_turn = :turn
      AND conversation.revision = :revision
      AND turn.tenant = :tenant AND turn.id = :turn AND turn.token = :token AND turn.outcome || '' = 'running'
      AND turn.staged = :staged AND turn.steered IS NOT DISTINCT FROM :steered::text AND turn.budgeted = 0
      AND (:staged::bigint = 0 OR (SELECT erasures FROM meta) = :erasures::bigint)
    FOR NO KEY UPDATE OF conversation, turn
  ),
  opened AS (
    INSERT INTO segment (tenant, family, base, base_digest, landmarks)
    SELECT :tenant, :family::bytea, :base::bigint, :base_digest::bytea, 1 FROM held WHERE held.open_segment IS NULL
    RETURNING id
  ),
  place AS MATERIALIZED (
    SELECT coalesce(held.open_segment, opened.id) AS segment, held.records + 1 AS number,
      sha256(
        'forkpoint record 1'::bytea || held.record_digest || :chain::bytea || int8send(held.records + 1) || :body_digest::bytea
      ) AS digest
    FROM held LEFT JOIN opened ON true
  ),
  added AS (
    INSERT INTO event (tenant, segment, ordinal, turn, envelope, payload, salt, payload_digest, chain_digest)
    SELECT :tenant, place.segment, :base_ordinal::bigint + given.number, :turn::bytea, given.envelope, given.payload,
      given.salt, given.payload_digest, given.chain_digest
    FROM place
    CROSS JOIN (VALUES /* rows */) AS given (number, envelope, payload, salt, payload_digest, chain_digest)
  ),
  told AS (
    INSERT INTO record (tenant, chain, number, kind, subject, body, salt, digest)
    SELECT :tenant, :chain::bytea, place.number, 'committed', :turn::bytea, :body::text, :salt::bytea, place.digest FROM place
  ),
  ended AS (
    UPDATE turn
    SET outcome = 'committed', staged = 0, steps_digest = NULL, "end" = place.segment << 32 | :ordinal::bigint,
      record = place.number, usage = :usage, totals = :totals, state_of = :state_of, state = :state,
      open_calls = :open_calls, steered = :delivered, holder = NULL, ended = :now::bigint,
      ran = coalesce(turn.ran, 0) + greatest(:now::bigint - turn.since, 0), since = NULL
    FROM place WHERE turn.tenant = :tenant AND turn.id = :turn
  ),
  moved AS (
    UPDATE conversation
    SET head = place.segment << 32 | :ordinal::bigint, head_digest = :head_digest, head_turn = :turn, head_totals = :totals,
      head_state_of = :state_of, head_state = NULL, head_open_calls = :open_calls, open_segment = place.segment,
      open_turn = NULL, revision = conversation.revision + 1, updated = :now::bigint, draft = 0,
      settings = coalesce(:settings::text, conversation.settings), cache = coalesce(:cache::text, conversation.cache),
      records = place.number, record_digest = place.digest
    FROM place WHERE conversation.tenant = :tenant AND conversation.id = :conversation
  ) /* parts */
SELECT segment FROM place;

-- name: commit_steps
-- A part of `commit_at_once`: the steps of the turn are events now.
, cleared AS (DELETE FROM step USING place WHERE step.tenant = :tenant AND step.turn = :turn);

-- name: commit_landmarks
-- A part of `commit_at_once`: the landmarks among its events.
, marked AS (
  INSERT INTO landmark (tenant, id, kind, kept_from)
  SELECT :tenant, place.segment << 32 | (:base_ordinal::bigint + given.number), given.kind, given.kept_from
  FROM place CROSS JOIN (VALUES /* rows */) AS given (number, kind, kept_from)
);

-- name: commit_copies
-- A part of `commit_at_once`: the events that repeat others.
, copied AS (
  INSERT INTO copy (tenant, position, source_turn, source_step)
  SELECT :tenant, place.segment << 32 | (:base_ordinal::bigint + given.number), given.source_turn, given.source_step
  FROM place CROSS JOIN (VALUES /* rows */) AS given (number, source_turn, source_step)
  ON CONFLICT DO NOTHING
);
