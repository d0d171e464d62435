-- The keys of a conversation's turns are found when it is deleted, however many keys there are.

CREATE INDEX idempotency_subject ON idempotency (tenant, subject) WHERE operation = 'turn';
