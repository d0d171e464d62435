-- Seals: records under one digest, to be named by anchors outside. forkpoint/history/seals.py says what is digested.
--
-- A program of an earlier format may write here: its records are sealed by the next program that makes a seal.

CREATE TABLE seal (
  id       INTEGER PRIMARY KEY,  -- in the order in which they were made
  tenant   TEXT NOT NULL,
  number   INTEGER NOT NULL,     -- from 1 on for each tenant, without a gap
  store    BLOB NOT NULL,        -- in which store it was made; a restored copy is another
  first    INTEGER NOT NULL,     -- the first record under it
  last     INTEGER NOT NULL,     -- and the last: all records up to it are sealed, of every tenant
  count    INTEGER NOT NULL,     -- records of the tenant that are sealed, with those of earlier seals
  root     BLOB NOT NULL,
  previous BLOB NOT NULL,
  digest   BLOB NOT NULL,
  time     INTEGER NOT NULL,
  leaves   BLOB NOT NULL,        -- the beginning of each record's digest: only to find out which one changed
  UNIQUE (tenant, number)
) STRICT;

CREATE TABLE store_seal (        -- the store's own, over the last seals of all tenants
  number   INTEGER PRIMARY KEY,
  store    BLOB NOT NULL,
  seal     INTEGER NOT NULL,     -- the newest seal that it covers
  count    INTEGER NOT NULL,
  root     BLOB NOT NULL,
  previous BLOB NOT NULL,
  digest   BLOB NOT NULL,
  time     INTEGER NOT NULL
) STRICT;
