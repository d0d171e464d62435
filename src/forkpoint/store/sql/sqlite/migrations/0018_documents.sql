-- The store's shelf: texts of the whole store, such as the keys of callers, so that a server needs nothing but the address
-- of its store.

CREATE TABLE document (
  kind    TEXT NOT NULL,     -- keys, config
  name    TEXT NOT NULL,
  version INTEGER NOT NULL,  -- grows with each change, also if the text was gone in between
  text    TEXT NOT NULL,
  updated INTEGER NOT NULL,
  PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
