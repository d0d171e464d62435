-- Charges: what was spent beside history stands in the ledger at once. `id` names a charge, whose `deleted` is 0 as long
-- as its conversation is there; NULL: the row is what a deleted conversation's turns had spent.
--
-- A program that knows only format 1 may still write here: its rows have no id, and its sum of a family's ledger counts
-- charges too.

ALTER TABLE ledger ADD COLUMN id BLOB;

CREATE UNIQUE INDEX ledger_charge ON ledger (tenant, id) WHERE id IS NOT NULL;
CREATE INDEX ledger_conversation ON ledger (tenant, conversation) WHERE id IS NOT NULL;
