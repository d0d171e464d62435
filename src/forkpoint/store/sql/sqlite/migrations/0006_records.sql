-- Records: the second chain, next to the events. forkpoint/history/records.py says what is chained and how.
--
-- Rows that an earlier format wrote get their chains in the same transaction, by sqlite/adoption.py. A program of an
-- earlier format must not write here: what it did would stand in no record.

ALTER TABLE meta ADD COLUMN store BLOB;            -- which store this is; a restored copy gets another

UPDATE meta SET store = randomblob(16);

CREATE TABLE record (
  id     INTEGER PRIMARY KEY,  -- in the order in which they were written
  tenant TEXT NOT NULL,
  chain  BLOB NOT NULL,        -- whose: a conversation's, a family's, one of the tenant's
  number INTEGER NOT NULL,     -- from 1 on, without a gap
  kind   TEXT NOT NULL,        -- as in the body
  subject BLOB,                -- the turn or charge that it is about
  body   TEXT,                 -- NULL once its conversation is deleted
  salt   BLOB,                 -- of the digests in the body; NULL if it has none, or once a text behind one was erased
  digest BLOB NOT NULL         -- never removed
) STRICT;

CREATE UNIQUE INDEX record_chain ON record (tenant, chain, number);
-- A commit moves no third tree of pages: its record is found by `turn.record`.
CREATE INDEX record_subject ON record (subject) WHERE subject IS NOT NULL AND kind NOT IN ('committed', 'note');

CREATE TABLE chain (           -- where the chain of a family or a tenant has come to; a conversation's is in its row
  tenant  TEXT NOT NULL,
  chain   BLOB NOT NULL,
  records INTEGER NOT NULL,
  digest  BLOB NOT NULL,
  PRIMARY KEY (tenant, chain)
) STRICT, WITHOUT ROWID;

ALTER TABLE conversation ADD COLUMN records INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversation ADD COLUMN record_digest BLOB NOT NULL DEFAULT x'';  -- of its last record, or of its birth
ALTER TABLE conversation ADD COLUMN born TEXT NOT NULL DEFAULT '';            -- how it began
ALTER TABLE conversation ADD COLUMN born_salt BLOB;                           -- of the digests in `born`
ALTER TABLE conversation ADD COLUMN first_digest BLOB NOT NULL DEFAULT x'';   -- of its birth: its first record follows it

ALTER TABLE turn ADD COLUMN record INTEGER;        -- the number of the record of its commit, in its conversation's chain
ALTER TABLE turn ADD COLUMN steps_digest BLOB;     -- of all its steps, in the order of arrival; NULL: it has none

-- The same table with a digest for each step, and room for a step that was erased.
CREATE TABLE step_6 (
  turn           BLOB NOT NULL,
  number         INTEGER NOT NULL,     -- in the order of arrival; results are put in the order of their calls at the commit
  envelope       TEXT NOT NULL,
  payload        TEXT,                 -- NULL once erased
  salt           BLOB,                 -- NULL once erased
  payload_digest BLOB NOT NULL,
  PRIMARY KEY (turn, number)
) STRICT;

INSERT INTO step_6 (turn, number, envelope, payload, payload_digest) SELECT turn, number, envelope, payload, x'' FROM step;
DROP TABLE step;
ALTER TABLE step_6 RENAME TO step;

UPDATE meta SET writable_from = 6;
