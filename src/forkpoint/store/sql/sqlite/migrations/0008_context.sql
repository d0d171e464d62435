-- Landmarks: the places of the few events that a run has to find on a path however long that is, such as condensations
-- and system messages. Without them a run would have to read the whole path to find them.
--
-- Every writer has to add them. A segment from before there were any has NULL: whoever first looks for landmarks there
-- reads all of it once, and writes them down.

CREATE TABLE landmark (
  id        INTEGER PRIMARY KEY REFERENCES event (id) ON DELETE CASCADE,  -- the event's position
  kind      TEXT NOT NULL,      -- the event's kind
  kept_from INTEGER             -- of a condensation: the first ordinal that prompts still show after it
) STRICT;

ALTER TABLE segment ADD COLUMN landmarks INTEGER;  -- 1: all of its landmarks are there

UPDATE meta SET writable_from = 8;
