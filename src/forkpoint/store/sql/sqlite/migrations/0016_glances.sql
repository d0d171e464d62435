-- A list says of each conversation how many branches were set aside from it, and how many sides it has: one range of an
-- index for each conversation.

CREATE INDEX conversation_folded ON conversation (tenant, lineage_source, lineage_kind, draft)
WHERE lineage_kind IN ('aside', 'side');
