-- name: read_document
-- A text on the store's shelf.
SELECT version, text, updated FROM document WHERE kind = :kind AND name = :name;

-- name: document_versions
-- Which texts of a kind are there, and in which version: asked every second, so none is read.
SELECT name, version FROM document WHERE kind = :kind;

-- name: insert_document
-- A text comes on the shelf, unless one is there under its name.
INSERT INTO document (kind, name, version, text, updated) VALUES (:kind, :name, :version, :text, :now)
ON CONFLICT (kind, name) DO NOTHING;

-- name: update_document
-- A text is replaced, unless somebody was faster.
UPDATE document SET version = :version, text = :text, updated = :now
WHERE kind = :kind AND name = :name AND version = :before;

-- name: delete_document
-- A text is taken away, unless somebody has changed it.
DELETE FROM document WHERE kind = :kind AND name = :name AND version = :before;
