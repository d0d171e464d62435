-- Imports: while a file is imported, its events stand in segments that no head reaches yet. What is named here is no
-- garbage: the collector leaves it alone, and verify does not look at it. A process that is killed leaves such rows
-- behind; the next import or collection removes them, with all that they name.
--
-- A program of an earlier format must not write here: its collector would remove segments that are being imported.

CREATE TABLE import (
  id     BLOB PRIMARY KEY,
  tenant TEXT NOT NULL,
  family BLOB NOT NULL,
  holder BLOB NOT NULL,                -- the process that imports
  seen   INTEGER NOT NULL              -- when it last wrote
) STRICT, WITHOUT ROWID;

CREATE TABLE import_segment (
  segment INTEGER PRIMARY KEY,
  import  BLOB NOT NULL
) STRICT;

CREATE INDEX import_segment_import ON import_segment (import);

UPDATE meta SET writable_from = 12;
