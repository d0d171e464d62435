-- Lists: a page of a list is a range of an index, however many conversations there are and wherever in the list the page
-- is. `used` is when a turn last began in a conversation, to the minute: it moves with the begin of a turn, which is not
-- synced, and only if it is a minute old. So no commit moves an order; all that it writes here is `conversation_open`.
--
-- A program of an earlier format must not write here: it would not move `used`.

ALTER TABLE conversation ADD COLUMN used INTEGER NOT NULL DEFAULT 0;

UPDATE conversation SET used = max(created, updated);

CREATE INDEX conversation_created ON conversation (tenant, lineage_kind, id) WHERE draft = 0;
CREATE INDEX conversation_used ON conversation (tenant, lineage_kind, used, id) WHERE draft = 0;
CREATE INDEX conversation_open ON conversation (tenant, id) WHERE open_turn IS NOT NULL;

DROP INDEX conversation_family;
DROP INDEX conversation_parent;
CREATE INDEX conversation_family ON conversation (family, id);
CREATE INDEX conversation_parent ON conversation (lineage_source, id) WHERE lineage_kind = 'sub_agent';

-- The entries of `conversation.tags`, written by the triggers below. What is not valid there, because somebody damaged it,
-- has no entry; and a text with a NUL may be cut off. So entries only say where to look: what counts are the tags of the
-- conversation itself.
CREATE TABLE tag (
  tenant       TEXT NOT NULL,
  key          TEXT NOT NULL,
  value        TEXT NOT NULL,
  conversation BLOB NOT NULL,
  used         INTEGER NOT NULL,       -- the conversation's
  PRIMARY KEY (tenant, key, value, conversation)
) STRICT, WITHOUT ROWID;

CREATE INDEX tag_used ON tag (tenant, key, value, used, conversation);

INSERT OR IGNORE INTO tag (tenant, key, value, conversation, used)
SELECT tenant, entry.key, entry.value, conversation.id, used
FROM conversation, json_each(iif(json_valid(conversation.tags), conversation.tags, '{}')) AS entry;

CREATE TRIGGER conversation_made AFTER INSERT ON conversation WHEN NEW.tags <> '{}'
BEGIN
  INSERT OR IGNORE INTO tag (tenant, key, value, conversation, used)
  SELECT NEW.tenant, entry.key, entry.value, NEW.id, NEW.used
  FROM json_each(iif(json_valid(NEW.tags), NEW.tags, '{}')) AS entry;
END;

CREATE TRIGGER conversation_tagged AFTER UPDATE OF tags ON conversation WHEN OLD.tags <> NEW.tags
BEGIN
  DELETE FROM tag
  WHERE tenant = OLD.tenant AND conversation = OLD.id
    AND (key, value) IN (
      SELECT entry.key, entry.value FROM json_each(iif(json_valid(OLD.tags), OLD.tags, '{}')) AS entry
    );
  INSERT OR IGNORE INTO tag (tenant, key, value, conversation, used)
  SELECT NEW.tenant, entry.key, entry.value, NEW.id, NEW.used
  FROM json_each(iif(json_valid(NEW.tags), NEW.tags, '{}')) AS entry;
END;

CREATE TRIGGER conversation_moved AFTER UPDATE OF used ON conversation WHEN NEW.tags <> '{}'
BEGIN
  UPDATE tag SET used = NEW.used
  WHERE tenant = NEW.tenant AND conversation = NEW.id
    AND (key, value) IN (
      SELECT entry.key, entry.value FROM json_each(iif(json_valid(NEW.tags), NEW.tags, '{}')) AS entry
    );
END;

CREATE TRIGGER conversation_gone AFTER DELETE ON conversation WHEN OLD.tags <> '{}'
BEGIN
  DELETE FROM tag
  WHERE tenant = OLD.tenant AND conversation = OLD.id
    AND (key, value) IN (
      SELECT entry.key, entry.value FROM json_each(iif(json_valid(OLD.tags), OLD.tags, '{}')) AS entry
    );
END;

UPDATE meta SET writable_from = 7;
