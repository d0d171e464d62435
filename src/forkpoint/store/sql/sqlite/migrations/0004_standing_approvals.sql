-- Standing approvals: what a person has allowed once and for all in a conversation, as one document. It stands beside the
-- settings, and not in them, since it changes while a turn is open, and no commit may bring back what was revoked.
--
-- A program of an earlier format may still write here: the forks that it makes have no standing approvals, so that they
-- ask.

ALTER TABLE conversation ADD COLUMN approvals TEXT NOT NULL DEFAULT '[]';
