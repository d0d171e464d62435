-- Budgets: what a conversation or a family may spend, what it has spent, and what calls under way may still cost.
--
-- A program of an earlier format must not write here: what it spends would not be counted.

CREATE TABLE budget (
  id                   INTEGER PRIMARY KEY,
  tenant               TEXT NOT NULL,
  family               BLOB NOT NULL,
  scope                TEXT NOT NULL,              -- conversation, family
  subject              BLOB NOT NULL,              -- the conversation, or the family
  apart                INTEGER NOT NULL DEFAULT 0, -- 1: what it covers does not draw from the family's budget
  most_nanodollars     INTEGER,                    -- the limits; NULL: there is none
  most_tokens          INTEGER,
  most_turns           INTEGER,
  most_micros          INTEGER,
  spent_nanodollars    INTEGER NOT NULL DEFAULT 0, -- all that was ever spent there
  spent_tokens         INTEGER NOT NULL DEFAULT 0,
  spent_turns          INTEGER NOT NULL DEFAULT 0,
  spent_micros         INTEGER NOT NULL DEFAULT 0,
  reserved_nanodollars INTEGER NOT NULL DEFAULT 0, -- the sums of its reservations
  reserved_tokens      INTEGER NOT NULL DEFAULT 0,
  reserved_turns       INTEGER NOT NULL DEFAULT 0,
  reserved_micros      INTEGER NOT NULL DEFAULT 0,
  UNIQUE (tenant, family, scope, subject)
) STRICT;

CREATE TABLE reservation (              -- what may still be spent of a budget by what is under way
  owner       BLOB NOT NULL,            -- the turn, charge or note
  kind        TEXT NOT NULL,            -- call: of a model, at its worst; turn: one turn, and a slice of time
  budget      INTEGER NOT NULL REFERENCES budget (id) ON DELETE CASCADE,
  holder      BLOB NOT NULL,            -- the process; if it is gone, so is the reservation
  nanodollars INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  turns       INTEGER NOT NULL,
  micros      INTEGER NOT NULL,
  PRIMARY KEY (owner, kind, budget)
) STRICT, WITHOUT ROWID;

CREATE INDEX reservation_budget ON reservation (budget);

ALTER TABLE turn ADD COLUMN budgeted INTEGER NOT NULL DEFAULT 0;  -- 1: its family has a budget, and a write has to count
ALTER TABLE turn ADD COLUMN ran INTEGER;    -- microseconds that processes have run it; NULL: an earlier format wrote it
ALTER TABLE turn ADD COLUMN since INTEGER;  -- since when it runs and that is not in "ran"; NULL: it does not run

UPDATE meta SET writable_from = 14;
