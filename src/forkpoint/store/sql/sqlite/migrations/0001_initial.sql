-- The first format. docs/data-model.md explains each table; a position is `segment << 32 | ordinal`.

CREATE TABLE meta (
  format        INTEGER NOT NULL,            -- which migrations have run
  writable_from INTEGER NOT NULL,            -- the oldest format that a program must know to write here
  barrier       INTEGER NOT NULL DEFAULT 0,  -- written to find out what a failed COMMIT left behind
  erasures      INTEGER NOT NULL DEFAULT 0   -- how often payloads were erased; caches of an older count are void
) STRICT;

CREATE TABLE segment (
  id          INTEGER PRIMARY KEY AUTOINCREMENT,     -- never used again, even after collection
  tenant      TEXT NOT NULL,
  family      BLOB NOT NULL,
  base        INTEGER REFERENCES event (id) ON DELETE RESTRICT,  -- NULL: it starts at the root
  base_digest BLOB NOT NULL                          -- the chain digest that its first event follows
) STRICT;

CREATE INDEX segment_family ON segment (family);
CREATE INDEX segment_base ON segment (base) WHERE base IS NOT NULL;

CREATE TABLE event (
  id             INTEGER PRIMARY KEY,  -- its position
  turn           BLOB NOT NULL,
  envelope       TEXT NOT NULL,        -- never erased
  payload        TEXT,                 -- NULL once erased
  salt           BLOB,                 -- NULL once erased
  payload_digest BLOB NOT NULL,
  chain_digest   BLOB NOT NULL
) STRICT;

CREATE TABLE conversation (
  tenant          TEXT NOT NULL,
  id              BLOB NOT NULL,
  name            TEXT NOT NULL,
  family          BLOB NOT NULL,
  revision        INTEGER NOT NULL,
  -- The head, and what is true there.
  head            INTEGER REFERENCES event (id) ON DELETE RESTRICT,  -- NULL: no events yet
  head_digest     BLOB NOT NULL,
  head_turn       BLOB,
  head_totals     TEXT NOT NULL,
  head_state_of   BLOB,                -- the turn whose folded state is in force
  head_state      TEXT,                -- the state itself, only where no commit stood
  head_open_calls TEXT NOT NULL,
  open_segment    INTEGER UNIQUE REFERENCES segment (id) ON DELETE RESTRICT,  -- the one it may append to
  open_turn       BLOB,                -- the lock
  settings        TEXT NOT NULL,
  cache           TEXT NOT NULL,       -- the cache identity
  lineage_kind    TEXT NOT NULL,       -- root, fork, aside, sub_agent
  lineage_source  BLOB,
  lineage_at      INTEGER,
  lineage_turn    BLOB,
  lineage_call    TEXT,
  own_from        INTEGER NOT NULL,    -- the ordinal after which spend is its own
  inherited       TEXT NOT NULL,       -- totals up to there
  carries_metrics INTEGER NOT NULL,
  title           TEXT,
  tags            TEXT NOT NULL,       -- a JSON object
  draft           INTEGER NOT NULL,
  created         INTEGER NOT NULL,
  updated         INTEGER NOT NULL,
  PRIMARY KEY (tenant, id),
  UNIQUE (tenant, name)
) STRICT;

CREATE INDEX conversation_family ON conversation (family);
CREATE INDEX conversation_head ON conversation (head) WHERE head IS NOT NULL;
CREATE UNIQUE INDEX conversation_spawned ON conversation (tenant, lineage_turn, lineage_call) WHERE lineage_kind = 'sub_agent';
CREATE INDEX conversation_parent ON conversation (lineage_source) WHERE lineage_kind = 'sub_agent';
CREATE INDEX conversation_draft ON conversation (updated) WHERE draft = 1;

CREATE TABLE turn (
  id           BLOB PRIMARY KEY,
  tenant       TEXT NOT NULL,
  conversation BLOB NOT NULL,
  kind         TEXT NOT NULL,          -- turn, note
  outcome      TEXT NOT NULL,          -- running, awaiting_approval, committed, failed, cancelled
  base         INTEGER,                -- the head it started from; NULL: the root
  "end"        INTEGER,                -- the position of its last event, once committed
  holder       BLOB,                   -- the process that runs it
  token        BLOB,                   -- what a write to it must show
  staged       INTEGER NOT NULL DEFAULT 0,  -- how many steps are journalled; a write must know them all
  input        TEXT,
  key          TEXT,                   -- the idempotency key that it was begun with
  request      BLOB,                   -- and the digest of what was asked
  usage        TEXT NOT NULL,
  totals       TEXT NOT NULL,          -- along the path, this turn included
  state_of     BLOB,                   -- the turn whose folded state is in force after it
  state        TEXT,                   -- the folded state, if it is this turn's own
  open_calls   TEXT NOT NULL,          -- calls that the client still has to answer
  error        TEXT,
  retry_of     BLOB,
  started      INTEGER NOT NULL,
  ended        INTEGER
) STRICT;

CREATE INDEX turn_end ON turn ("end") WHERE "end" IS NOT NULL;
CREATE INDEX turn_ended ON turn (conversation) WHERE outcome IN ('failed', 'cancelled');

CREATE TABLE step (
  turn     BLOB NOT NULL,
  number   INTEGER NOT NULL,           -- in the order of arrival; results are put in the order of their calls at the commit
  envelope TEXT NOT NULL,
  payload  TEXT NOT NULL,
  PRIMARY KEY (turn, number)
) STRICT;

CREATE TABLE ledger (                  -- what deleted conversations had spent
  tenant       TEXT NOT NULL,
  family       BLOB NOT NULL,
  conversation BLOB NOT NULL,
  usage        TEXT NOT NULL,
  deleted      INTEGER NOT NULL
) STRICT;

CREATE INDEX ledger_family ON ledger (tenant, family);

CREATE TABLE holder (
  id   BLOB PRIMARY KEY,
  seen INTEGER NOT NULL                -- its last heartbeat
) STRICT;

CREATE TABLE idempotency (
  tenant    TEXT NOT NULL,
  key       TEXT NOT NULL,
  operation TEXT NOT NULL,             -- create, fork, rewind, turn
  subject   BLOB,                      -- the conversation that was forked, rewound or run; NULL: none was there yet
  target    BLOB NOT NULL,             -- the conversation or turn that came of it
  request   BLOB NOT NULL,             -- the digest of what was asked
  created   INTEGER NOT NULL,
  PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_target ON idempotency (tenant, target);
CREATE INDEX idempotency_created ON idempotency (created);
