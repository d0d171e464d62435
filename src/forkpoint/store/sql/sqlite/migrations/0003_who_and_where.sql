-- Who asked for a turn, who asked to cancel it, and where the process is that runs it. All of it is NULL in rows that a
-- program of an earlier format wrote.
--
-- A program of an earlier format must not write here: it would not see that a turn is to be cancelled, and it cannot
-- read a conversation whose `lineage_kind` is `side`.

ALTER TABLE turn ADD COLUMN "by" TEXT;             -- who asked for the turn or note: the name of a key, or of a user
ALTER TABLE turn ADD COLUMN cancel_asked INTEGER;  -- when somebody asked its holder to cancel it; NULL: nobody did

ALTER TABLE holder ADD COLUMN host TEXT;           -- the machine on which it runs
ALTER TABLE holder ADD COLUMN process INTEGER;     -- its process id there
ALTER TABLE holder ADD COLUMN since INTEGER;       -- when it opened the store

UPDATE meta SET writable_from = 3;
