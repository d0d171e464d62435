-- Erasure: what keeps a family from it, and where copies of an event stand.
--
-- Copies that an earlier format has made get their rows in the same transaction, by erasure/copied_events.py. A program
-- of an earlier format must not write here: it would make copies that nobody finds, and would delete what is held.

CREATE TABLE hold (            -- what keeps a family from deletion, erasure and retention; the family's records say the same
  tenant TEXT NOT NULL,
  family BLOB NOT NULL,
  id     BLOB NOT NULL,
  reason TEXT NOT NULL,
  "by"   TEXT,
  since  INTEGER NOT NULL,
  PRIMARY KEY (tenant, family, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE copy (            -- an event that repeats what another turn says
  position    INTEGER PRIMARY KEY REFERENCES event (id) ON DELETE CASCADE,
  source_turn BLOB NOT NULL,   -- the turn that it repeats; the sub-agent, if an event tells of one that has no turn yet
  source_step INTEGER NOT NULL -- which event of that turn, in the order of arrival, from 1; 0: it tells of a sub-agent's turn
) STRICT;

CREATE INDEX copy_source ON copy (source_turn);
CREATE INDEX turn_retry ON turn (retry_of) WHERE retry_of IS NOT NULL;
CREATE INDEX record_erased ON record (tenant, id) WHERE kind = 'erased';

-- How many erasures there had been when the file was last written anew: SQLite leaves copies of rows in the unused part of
-- a page when it moves them to a neighbouring page, and overwrites only what it removes.
ALTER TABLE meta ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0;

UPDATE meta SET compacted = erasures, writable_from = 10;
