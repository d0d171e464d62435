-- Garbage: whatever takes a pointer into history away notes where it pointed, so that the collector looks there and
-- nowhere else. operations/garbage.py says how it works.
--
-- A program of an earlier format must not write here: it would leave garbage that nobody finds.

CREATE TABLE garbage (                 -- segments whose end perhaps nobody reaches any more
  tenant  TEXT NOT NULL,
  segment INTEGER NOT NULL,
  since   INTEGER NOT NULL,
  PRIMARY KEY (tenant, segment)
) STRICT, WITHOUT ROWID;

INSERT INTO garbage (tenant, segment, since)
SELECT tenant, id, 0 FROM segment
WHERE NOT EXISTS (
  SELECT 1 FROM conversation
  WHERE head = (
    SELECT max(event.id) FROM event WHERE event.id BETWEEN segment.id << 32 AND (segment.id << 32) + 4294967295
  )
);

CREATE TABLE pin (                     -- the bases of open turns that stand elsewhere than at their conversation's head
  turn  BLOB PRIMARY KEY,
  place INTEGER NOT NULL REFERENCES event (id) ON DELETE RESTRICT
) STRICT, WITHOUT ROWID;

CREATE INDEX pin_place ON pin (place);

INSERT INTO pin (turn, place)
SELECT turn.id, turn.base FROM conversation JOIN turn ON turn.id = conversation.open_turn
WHERE turn.base IS NOT NULL AND turn.base IS NOT conversation.head;

ALTER TABLE turn ADD COLUMN expired INTEGER;       -- when a rule of retention removed input, error, key and steps; NULL: it did not

CREATE INDEX turn_expiring ON turn (ended) WHERE outcome IN ('failed', 'cancelled') AND expired IS NULL;

-- Removed text is in the log until a checkpoint has emptied the log. `removals` counts the transactions that removed
-- some, and `cleared` is how far that number had come when the log was last emptied: if it is lower, some text is left.
ALTER TABLE meta ADD COLUMN removals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE meta ADD COLUMN cleared  INTEGER NOT NULL DEFAULT 0;

UPDATE meta SET removals = EXISTS (SELECT 1 FROM segment), writable_from = 9;
