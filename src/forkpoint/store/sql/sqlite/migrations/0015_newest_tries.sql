-- Turns are also read newest first: the index has a conversation's tries in the order in which they began.

DROP INDEX turn_ended;
CREATE INDEX turn_ended ON turn (conversation, id) WHERE outcome IN ('failed', 'cancelled');
