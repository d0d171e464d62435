-- Orphans: open turns whose process is gone. Another process goes on by itself with a turn that somebody was promised.
--
-- A program of an earlier format may write here: its turns are promised to nobody, and it counts no take-over.

ALTER TABLE turn ADD COLUMN accepted INTEGER NOT NULL DEFAULT 0;   -- 1: somebody was told that it runs, and not yet how it ended
ALTER TABLE turn ADD COLUMN takeovers INTEGER NOT NULL DEFAULT 0;  -- how often it was taken over from a process that died
