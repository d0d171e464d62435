"""`verify` finds what somebody changed in the file behind the store's back."""

import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from tests.store.support.full_store import fill

from forkpoint.history.records import ErasedRun, Erasure, Fact, family_chain
from forkpoint.ids import id_to_bytes, new_id
from forkpoint.store.erasure import Erasing
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.sqlite.connection import SQL, Database
from forkpoint.store.tables.evidence import records
from forkpoint.store.tables.rows import Scope
from forkpoint.store.values import Verification
from forkpoint.testing.conformance.base import create, fork_of, run
from forkpoint.testing.samples import says

pytestmark = pytest.mark.anyio

ROOT = "(SELECT id FROM conversation WHERE name = 'root')"
OF_ROOT = f"substr(chain, 1, 1) = x'63' AND substr(chain, 2) = {ROOT}"
FAILED = f"(SELECT id FROM turn WHERE outcome = 'failed' AND conversation = {ROOT})"
LAST = "(SELECT head_turn FROM conversation WHERE name = 'root')"
RETRY = "(SELECT id FROM turn WHERE retry_of IS NOT NULL)"
LONE = "(SELECT id FROM conversation WHERE name = 'lone')"
KEPT = "kind = 'kept'"
SAID_OTHERWISE = (
    f"UPDATE record SET body = replace(body, '{{said}}', '{{said}}1') WHERE {KEPT} AND body LIKE '%{{said}}%'"
)
NOTE = "(SELECT id FROM turn WHERE kind = 'note')"

TAMPERED: dict[str, str] = {
    # Events and segments.
    "a payload": "UPDATE event SET payload = replace(payload, 'one', 'two')",
    "a payload, with its digest": (
        "UPDATE event SET payload = replace(payload, 'one', 'two'), payload_digest = zeroblob(32) "
        "WHERE id = (1 << 32) + 1"
    ),
    "every payload, wiped": "UPDATE event SET payload = NULL, salt = NULL",
    "a payload, wiped": "UPDATE event SET payload = NULL, salt = NULL WHERE id = (1 << 32) + 1",
    "a payload, wiped without its salt": "UPDATE event SET payload = NULL WHERE id = (1 << 32) + 1",
    "an envelope": """UPDATE event SET envelope = replace(envelope, '"user"', '"system"')""",
    "when an event was": """UPDATE event SET envelope = replace(envelope, '"time":1', '"time":2')""",
    "a salt": "UPDATE event SET salt = zeroblob(16) WHERE id = (1 << 32) + 2",
    "a payload digest": "UPDATE event SET payload_digest = zeroblob(32) WHERE id = (1 << 32) + 2",
    "a chain digest": "UPDATE event SET chain_digest = zeroblob(32) WHERE id = (1 << 32) + 2",
    "whose an event is": "UPDATE event SET turn = (SELECT head_turn FROM conversation WHERE name = 'fork')",
    "an event, removed": "DELETE FROM event WHERE id = (1 << 32) + 2",
    "the last event, removed": "DELETE FROM event WHERE id = (SELECT head FROM conversation WHERE name = 'root')",
    "an event beyond the end of a turn": (
        "INSERT INTO event SELECT id + 1, turn, envelope, payload, salt, payload_digest, chain_digest FROM event "
        "WHERE id = (SELECT head FROM conversation WHERE name = 'lone')"
    ),
    "two events, exchanged": "UPDATE event SET id = CASE id & 15 WHEN 2 THEN -1 ELSE id END WHERE id = (1 << 32) + 2",
    "a segment's base": "UPDATE segment SET base = base - 1 WHERE base IS NOT NULL",
    "the digest of a segment's base": "UPDATE segment SET base_digest = zeroblob(32) WHERE base IS NOT NULL",
    "a segment's base, moved into an exchange": "UPDATE segment SET base = (1 << 32) + 5 WHERE base IS NOT NULL",
    "a segment, removed": "DELETE FROM segment WHERE id = 1",
    "a segment, given to another family": "UPDATE segment SET family = zeroblob(16) WHERE id = 1",
    "a result, made into another kind": "UPDATE event SET envelope = replace(envelope, 'tool_result', 'hook_run')",
    # Heads, and the rest of a conversation's row.
    "a head": "UPDATE conversation SET head = head - 2 WHERE name = 'root'",
    "a head, into another family": (
        "UPDATE conversation SET head = (SELECT head FROM conversation WHERE name = 'lone') WHERE name = 'root'"
    ),
    "a head, back to an earlier turn with all it states": (
        "UPDATE conversation SET (head, head_digest, head_turn, head_totals, head_state_of, head_open_calls) = "
        "(SELECT head, head_digest, head_turn, head_totals, head_state_of, head_open_calls FROM conversation "
        "WHERE name = 'early'), open_segment = NULL WHERE name = 'root'"
    ),
    "a head's digest": "UPDATE conversation SET head_digest = zeroblob(32) WHERE name = 'root'",
    "a head's turn": "UPDATE conversation SET head_turn = zeroblob(16) WHERE name = 'root'",
    "what a path is said to have cost": """UPDATE conversation SET head_totals = '{"calls":1}' WHERE name = 'root'""",
    "the turn whose state is in force": "UPDATE conversation SET head_state_of = NULL WHERE name = 'root'",
    "the state at a head": """UPDATE conversation SET head_state = '{"values":[]}' WHERE name = 'root'""",
    "the calls that are open at a head": """UPDATE conversation SET head_open_calls = '{"client":["c9"]}'""",
    "a revision": "UPDATE conversation SET revision = revision + 1 WHERE name = 'root'",
    "settings: risky calls are approved always": (
        """UPDATE conversation SET settings = '{"approval":"never"}' WHERE name = 'root'"""
    ),
    "settings of a conversation without records": (
        """UPDATE conversation SET settings = '{"approval":"never"}' WHERE name = 'unused'"""
    ),
    "settings, made unreadable": "UPDATE conversation SET settings = 'rubbish' WHERE name = 'root'",
    "a cache identity": """UPDATE conversation SET cache = '{"key":"other"}' WHERE name = 'root'""",
    "a cache identity, made unreadable": "UPDATE conversation SET cache = '{' WHERE name = 'root'",
    "standing approvals": """UPDATE conversation SET approvals = '[{"tool":"shell"}]' WHERE name = 'root'""",
    "standing approvals, made unreadable": "UPDATE conversation SET approvals = '[' WHERE name = 'fork'",
    "a name": "UPDATE conversation SET name = 'other' WHERE name = 'root'",
    "two names, exchanged": (
        "UPDATE conversation SET name = CASE name WHEN 'fork' THEN 'x' ELSE name END WHERE name IN ('fork', 'early')"
    ),
    "a title": "UPDATE conversation SET title = 'Another title' WHERE name = 'root'",
    "a title, removed": "UPDATE conversation SET title = NULL WHERE name = 'root'",
    "tags": """UPDATE conversation SET tags = '{"team":"red"}' WHERE name = 'root'""",
    "the kind of a lineage": "UPDATE conversation SET lineage_kind = 'fork' WHERE name = 'helper'",
    "the source of a lineage": "UPDATE conversation SET lineage_source = zeroblob(16) WHERE name = 'fork'",
    "the place of a lineage": "UPDATE conversation SET lineage_at = lineage_at - 1 WHERE name = 'fork'",
    "the turn of a lineage": "UPDATE conversation SET lineage_turn = zeroblob(16) WHERE name = 'helper'",
    "the call of a lineage": "UPDATE conversation SET lineage_call = 'c9' WHERE name = 'helper'",
    "a family": "UPDATE conversation SET family = zeroblob(16) WHERE name = 'lone'",
    "from where on a fork pays": "UPDATE conversation SET own_from = own_from - 1 WHERE name = 'fork'",
    "what a fork inherited": """UPDATE conversation SET inherited = '{"calls":9}' WHERE name = 'fork'""",
    "what a fork inherited, made unreadable": "UPDATE conversation SET inherited = 'x' WHERE name = 'fork'",
    "what a fork counts": "UPDATE conversation SET carries_metrics = 1 - carries_metrics WHERE name = 'fork'",
    "a conversation, made a draft": "UPDATE conversation SET draft = 1 WHERE name = 'root'",
    "when a conversation was made": "UPDATE conversation SET created = created - 1 WHERE name = 'root'",
    "a lock, released": "UPDATE conversation SET open_turn = NULL WHERE name = 'waits'",
    "a lock, given to a turn that is over": f"UPDATE conversation SET open_turn = {FAILED} WHERE name = 'root'",
    "a lock, given to a turn of another": (
        "UPDATE conversation SET open_turn = (SELECT open_turn FROM conversation WHERE name = 'waits') "
        "WHERE name = 'root'"
    ),
    "a lock, given to nothing": "UPDATE conversation SET open_turn = zeroblob(16) WHERE name = 'root'",
    "the segment that is written to": (
        "UPDATE conversation SET open_segment = (SELECT max(id) FROM segment WHERE id NOT IN "
        "(SELECT open_segment FROM conversation WHERE open_segment IS NOT NULL)) WHERE name = 'root'"
    ),
    "a conversation, removed": "DELETE FROM conversation WHERE name = 'lone'",
    "a conversation, removed with its turns": (
        "DELETE FROM turn WHERE conversation = (SELECT id FROM conversation WHERE name = 'lone'); "
        "DELETE FROM conversation WHERE name = 'lone'"
    ),
    "a conversation, removed with all that is about it": (
        "DELETE FROM event WHERE turn IN (SELECT id FROM turn WHERE conversation = "
        "(SELECT id FROM conversation WHERE name = 'lone')); "
        "DELETE FROM turn WHERE conversation = (SELECT id FROM conversation WHERE name = 'lone'); "
        "DELETE FROM record WHERE substr(chain, 2) = (SELECT id FROM conversation WHERE name = 'lone'); "
        "DELETE FROM conversation WHERE name = 'lone'"
    ),
    "a conversation, brought back under the id of one that was deleted": (
        "UPDATE conversation SET id = (SELECT subject FROM record WHERE kind = 'deleted' "
        "AND subject NOT IN (SELECT id FROM conversation)) "
        "WHERE name = 'unused'"
    ),
    "the id of a conversation, made unreadable": "UPDATE conversation SET id = x'00' WHERE name = 'root'",
    "a family, made unreadable": "UPDATE conversation SET family = x'00' WHERE name = 'root'",
    "the tenant of a conversation": "UPDATE conversation SET tenant = 'other' WHERE name = 'root'",
    "the tenant of a segment": "UPDATE segment SET tenant = 'other' WHERE id = 1",
    # Births and records.
    "a birth": "UPDATE conversation SET born = replace(born, '\"fork\"', '\"aside\"') WHERE name = 'fork'",
    "a birth, made unreadable": "UPDATE conversation SET born = 'x' WHERE name = 'fork'",
    "the birth of a fork whose source is gone": (
        "UPDATE conversation SET born = replace(born, '\"created\":1', '\"created\":2'), created = "
        "CAST('2' || substr(created, 2) AS INTEGER) WHERE name = 'empty-heir'"
    ),
    "the salt of a birth": "UPDATE conversation SET born_salt = zeroblob(16) WHERE name = 'fork'",
    "the salt of a birth, removed": "UPDATE conversation SET born_salt = NULL WHERE name = 'root'",
    "the first digest of a chain": "UPDATE conversation SET first_digest = zeroblob(32) WHERE name = 'unused'",
    "the last digest of a chain": "UPDATE conversation SET record_digest = zeroblob(32) WHERE name = 'root'",
    "how many records a conversation has": "UPDATE conversation SET records = records - 1 WHERE name = 'root'",
    "what a record says": (
        f"UPDATE record SET body = replace(body, 'alice', 'carol') WHERE {OF_ROOT} AND kind = 'failed'"
    ),
    "what a record says, with its digest": (
        "UPDATE record SET body = replace(body, 'alice', 'carol'), digest = zeroblob(32) "
        f"WHERE {OF_ROOT} AND number = 2"
    ),
    "what a record says, made unreadable": f"UPDATE record SET body = '{{' WHERE {OF_ROOT} AND number = 2",
    "what a record says, removed": f"UPDATE record SET body = NULL, salt = NULL WHERE {OF_ROOT} AND number = 2",
    "what a record of a family says, removed": "UPDATE record SET body = NULL WHERE kind = 'deleted'",
    "what a record of a family says": "UPDATE record SET body = replace(body, 'alice', 'carol') WHERE kind = 'deleted'",
    "what a record about a turn that is still there says, removed": (
        "UPDATE record SET body = NULL WHERE subject IN (SELECT turn.id FROM turn LEFT JOIN conversation "
        "ON conversation.id = turn.conversation WHERE conversation.id IS NULL) AND kind = 'committed' "
        "OR (kind = 'committed' AND body IS NOT NULL AND salt IS NULL)"
    ),
    "the salt of a record, removed": f"UPDATE record SET salt = NULL WHERE {OF_ROOT} AND kind = 'failed'",
    "the salt of a record": f"UPDATE record SET salt = zeroblob(16) WHERE {OF_ROOT} AND kind = 'failed'",
    "the kind of a record": f"UPDATE record SET kind = 'cancelled' WHERE {OF_ROOT} AND kind = 'failed'",
    "the subject of a record": f"UPDATE record SET subject = zeroblob(16) WHERE {OF_ROOT} AND kind = 'failed'",
    "the subject of a record, removed": f"UPDATE record SET subject = NULL WHERE {OF_ROOT} AND kind = 'failed'",
    "the digest of a record": f"UPDATE record SET digest = zeroblob(32) WHERE {OF_ROOT} AND number = 3",
    "the number of a record": f"UPDATE record SET number = 1000 WHERE {OF_ROOT} AND number = 3",
    "the chain of a record": f"UPDATE record SET chain = zeroblob(17) WHERE {OF_ROOT} AND number = 3",
    "the tenant of a record": f"UPDATE record SET tenant = 'other' WHERE {OF_ROOT} AND number = 3",
    "the order of records": f"UPDATE record SET id = -id WHERE {OF_ROOT} AND number = 3",
    "a record, removed": f"DELETE FROM record WHERE {OF_ROOT} AND number = 3",
    "the last record, removed": (
        f"DELETE FROM record WHERE {OF_ROOT} AND number = (SELECT records FROM conversation WHERE name = 'root')"
    ),
    "the record of a deletion, removed": "DELETE FROM record WHERE kind = 'deleted'",
    "the record of a deletion, removed with its chain": (
        "DELETE FROM chain WHERE chain IN (SELECT chain FROM record WHERE kind = 'deleted'); "
        "DELETE FROM record WHERE kind = 'deleted'"
    ),
    "a record, brought in": (
        "INSERT INTO record (tenant, chain, number, kind, subject, body, salt, digest) "
        f"SELECT tenant, chain, 1000, kind, subject, body, salt, digest FROM record WHERE {OF_ROOT} AND number = 3"
    ),
    "a chain of a family, removed": "DELETE FROM chain WHERE substr(chain, 1, 1) = x'66'",
    "the digest of a chain of the tenant": "UPDATE chain SET digest = zeroblob(32) WHERE substr(chain, 1, 1) = x'74'",
    "the length of a chain of the tenant": "UPDATE chain SET records = 7 WHERE substr(chain, 1, 1) = x'74'",
    "the records of a tenant's chain, removed": "DELETE FROM record WHERE substr(chain, 1, 1) = x'74'",
    "the chain of a record, made unreadable": f"UPDATE record SET chain = x'63' WHERE {OF_ROOT} AND number = 3",
    "a birth that says a conversation was forked from its own fork": (
        "UPDATE conversation SET born = (SELECT replace(born, '\"fork\"', '\"root\"') FROM conversation "
        "WHERE name = 'fork') WHERE name = 'root'"
    ),
    # A keep.
    "a kept head, back to where it stood": (
        "UPDATE conversation SET (head, head_digest, head_turn, head_totals, head_state_of, head_open_calls) = "
        "(SELECT head, head_digest, head_turn, head_totals, head_state_of, head_open_calls FROM conversation "
        "WHERE name = 'kept-aside') WHERE name = 'keeper'"
    ),
    "settings that came with a keep": (
        """UPDATE conversation SET settings = '{"approval":"never"}' WHERE name = 'keeper'"""
    ),
    "settings that a keep set aside": (
        """UPDATE conversation SET settings = '{"approval":"never"}' WHERE name = 'kept-aside'"""
    ),
    "a cache identity that came with a keep": (
        """UPDATE conversation SET cache = '{"key":"other"}' WHERE name = 'keeper'"""
    ),
    "from where on a conversation pays after a keep": (
        "UPDATE conversation SET own_from = own_from - 1 WHERE name = 'keeper'"
    ),
    "what a conversation inherited by a keep": (
        """UPDATE conversation SET inherited = '{"calls":9}' WHERE name = 'keeper'"""
    ),
    "which branch was kept": SAID_OTHERWISE.format(said='"kept":{"branch":"'),
    "where a head stood before a keep": SAID_OTHERWISE.format(said='"left":['),
    "which branch a keep set aside": SAID_OTHERWISE.format(said='"aside":"'),
    "the kind of a keep": f"UPDATE record SET kind = 'rewound' WHERE {KEPT}",
    "the salt of a keep": f"UPDATE record SET salt = zeroblob(16) WHERE {KEPT}",
    "the salt of a keep, removed": f"UPDATE record SET salt = NULL WHERE {KEPT}",
    "the record of a keep, removed": f"DELETE FROM record WHERE {KEPT}",
    # Turns.
    "the id of a turn, made unreadable": f"UPDATE turn SET id = x'00' WHERE id = {FAILED}",
    "what an interrupted turn cost, made unreadable": "UPDATE turn SET usage = 'x' WHERE outcome = 'running'",
    "an outcome: committed to failed": f"UPDATE turn SET outcome = 'failed' WHERE id = {LAST}",
    "an outcome: failed to cancelled": f"UPDATE turn SET outcome = 'cancelled' WHERE id = {FAILED}",
    "an outcome: failed to running": f"UPDATE turn SET outcome = 'running' WHERE id = {FAILED}",
    "an outcome: waiting to cancelled, with its lock": (
        "UPDATE turn SET outcome = 'cancelled' WHERE outcome = 'awaiting_approval'; "
        "UPDATE conversation SET open_turn = NULL WHERE name = 'waits'"
    ),
    "whose a committed turn is": f"UPDATE turn SET conversation = {LONE} WHERE id = {LAST}",
    "whose a failed turn is": f"UPDATE turn SET conversation = {LONE} WHERE id = {FAILED}",
    "whose a turn is, to another tenant": f"UPDATE turn SET tenant = 'other' WHERE id = {FAILED}",
    "a turn, made a note": f"UPDATE turn SET kind = 'note' WHERE id = {LAST}",
    "a note, made a turn": f"UPDATE turn SET kind = 'turn' WHERE id = {NOTE}",
    "where a failed turn began": f"UPDATE turn SET base = base - 1 WHERE id = {FAILED}",
    "where a failed turn began, to nowhere": f"UPDATE turn SET base = base + (99 << 32) WHERE id = {FAILED}",
    "where a failed turn began, to the root": f"UPDATE turn SET base = NULL WHERE id = {FAILED}",
    "where a committed turn began": f"UPDATE turn SET base = base - 1 WHERE id = {LAST}",
    "where an interrupted turn stands": "UPDATE turn SET base = base + (99 << 32) WHERE outcome = 'running'",
    "where a turn ended": f'UPDATE turn SET "end" = "end" - 1 WHERE id = {LAST}',
    "where a turn ended, to another segment": f'UPDATE turn SET "end" = "end" + (99 << 32) WHERE id = {LAST}',
    "where a failed turn ended": f'UPDATE turn SET "end" = base WHERE id = {FAILED}',
    "an input": f"""UPDATE turn SET input = '{{"text":"something else"}}' WHERE id = {RETRY}""",
    "the input of a failed turn": f"""UPDATE turn SET input = '{{"text":"something else"}}' WHERE id = {FAILED}""",
    "an input, removed": f"UPDATE turn SET input = NULL WHERE id = {FAILED}",
    "an input, brought in": f"UPDATE turn SET input = '{{}}' WHERE id = {NOTE}",
    "an error": f"UPDATE turn SET error = replace(error, 'no', 'yes') WHERE id = {FAILED}",
    "an error, removed": f"UPDATE turn SET error = NULL WHERE id = {FAILED}",
    "an error, brought in": f"""UPDATE turn SET error = '{{"code":"x","message":"y"}}' WHERE id = {LAST}""",
    "when a turn began": f"UPDATE turn SET started = started - 1 WHERE id = {FAILED}",
    "when a turn ended": f"UPDATE turn SET ended = ended - 1 WHERE id = {LAST}",
    "who asked for a turn": f"""UPDATE turn SET "by" = 'carol' WHERE id = {FAILED}""",
    "who asked for a note": f"""UPDATE turn SET "by" = NULL WHERE id = {NOTE}""",
    "the try that a turn repeats": f"UPDATE turn SET retry_of = NULL WHERE id = {RETRY}",
    "what turns cost": """UPDATE turn SET usage = '{"calls":1,"input":1}' WHERE usage <> '{}'""",
    "what a failed turn cost": f"UPDATE turn SET usage = '{{}}' WHERE id = {FAILED}",
    "what a turn cost, made unreadable": f"UPDATE turn SET usage = 'x' WHERE id = {FAILED}",
    "what a turn cost, in all places": (
        """UPDATE turn SET usage = '{"calls":1,"input":1}', totals = '{"calls":1,"input":1}' """
        "WHERE id = (SELECT head_turn FROM conversation WHERE name = 'lone'); "
        """UPDATE conversation SET head_totals = '{"calls":1,"input":1}' WHERE name = 'lone'"""
    ),
    "what turns cost in all": """UPDATE turn SET totals = '{"calls":9}' WHERE totals <> '{}'""",
    "what a path had cost where a failed turn began": f"UPDATE turn SET totals = '{{}}' WHERE id = {FAILED}",
    "a turn's cost, made unreadable": """UPDATE turn SET totals = 'rubbish' WHERE totals <> '{}'""",
    "the state that a turn left": """UPDATE turn SET state = replace(state, 'true', 'false') WHERE state IS NOT NULL""",
    "the state that a turn left, removed": "UPDATE turn SET state = NULL WHERE state IS NOT NULL",
    "a state, made unreadable": """UPDATE turn SET state = 'rubbish' WHERE state IS NOT NULL""",
    "the turn that left the state": f"UPDATE turn SET state_of = NULL WHERE id = {LAST}",
    "the calls that a turn left open": """UPDATE turn SET open_calls = '{"client":["c9"]}'""",
    "a committed turn, removed": f"DELETE FROM turn WHERE id = {LAST}",
    "a failed turn, removed": f"DELETE FROM turn WHERE id = {FAILED}",
    "a failed turn, removed with its steps": (
        f"DELETE FROM step WHERE turn = {FAILED}; DELETE FROM turn WHERE id = {FAILED}"
    ),
    "a failed turn, removed with its steps and its record": (
        f"DELETE FROM step WHERE turn = {FAILED}; DELETE FROM record WHERE subject = {FAILED}; "
        f"DELETE FROM turn WHERE id = {FAILED}"
    ),
    "a waiting turn, removed with its steps and its lock": (
        "DELETE FROM step WHERE turn = (SELECT open_turn FROM conversation WHERE name = 'waits'); "
        "DELETE FROM turn WHERE id = (SELECT open_turn FROM conversation WHERE name = 'waits'); "
        "UPDATE conversation SET open_turn = NULL WHERE name = 'waits'"
    ),
    "a turn, brought in": (
        "INSERT INTO turn (id, tenant, conversation, kind, outcome, usage, totals, open_calls, started) SELECT "
        "zeroblob(16), tenant, conversation, kind, 'failed', '{}', '{}', '{}', 1 FROM turn "
        f"WHERE id = {FAILED}"
    ),
    # Steps.
    "a step": f"UPDATE step SET payload = replace(payload, 'deleted', 'kept') WHERE turn = {FAILED}",
    "a step's envelope": f"""UPDATE step SET envelope = replace(envelope, 'd1', 'd2') WHERE turn = {FAILED}""",
    "a step, wiped": f"UPDATE step SET payload = NULL, salt = NULL WHERE turn = {FAILED} AND number = 3",
    "a step's salt": f"UPDATE step SET salt = zeroblob(16) WHERE turn = {FAILED}",
    "the last step, removed": f"DELETE FROM step WHERE turn = {FAILED} AND number = 3",
    "the last step, removed with its count": (
        f"DELETE FROM step WHERE turn = {FAILED} AND number = 3; UPDATE turn SET staged = 2 WHERE id = {FAILED}"
    ),
    "the first step, removed": f"DELETE FROM step WHERE turn = {FAILED} AND number = 1",
    "all steps, removed with count and digest": (
        f"DELETE FROM step WHERE turn = {FAILED}; UPDATE turn SET staged = 0, steps_digest = NULL WHERE id = {FAILED}"
    ),
    "how many steps there are": f"UPDATE turn SET staged = 4 WHERE id = {FAILED}",
    "the digest of steps": f"UPDATE turn SET steps_digest = zeroblob(32) WHERE id = {FAILED}",
    "a step of an interrupted turn": (
        "UPDATE step SET payload = replace(payload, 'half', 'whole') "
        "WHERE turn = (SELECT open_turn FROM conversation WHERE name = 'cut')"
    ),
    "steps, given to a committed turn": f"UPDATE step SET turn = {LAST} WHERE turn = {FAILED}",
    "steps of no turn": f"UPDATE step SET turn = zeroblob(16) WHERE turn = {FAILED}",
    # Lookups.
    "the tags by which a conversation is found": "DELETE FROM tag",
    "the place of a conversation in lists by tag": "UPDATE tag SET used = used + 1",
    "a conversation, found by a tag that it has not": (
        "INSERT INTO tag SELECT tenant, 'a', 'b', id, used FROM conversation WHERE name = 'lone'"
    ),
    "an event, said to be a copy": "INSERT INTO copy SELECT head, head_turn, 1 FROM conversation WHERE name = 'root'",
    "a copy, said to be none": "DELETE FROM copy",
    "what a copy repeats": "UPDATE copy SET source_step = source_step + 1",
    # The ledger.
    "a charge": f"""UPDATE ledger SET usage = '{{"calls":1}}' WHERE conversation = {ROOT}""",
    "a charge of no conversation": """UPDATE ledger SET usage = '{"calls":1}' WHERE conversation = x''""",
    "a charge, made unreadable": "UPDATE ledger SET usage = 'x' WHERE conversation = x''",
    "a charge, removed": f"DELETE FROM ledger WHERE conversation = {ROOT}",
    "a charge of no conversation, removed": "DELETE FROM ledger WHERE conversation = x''",
    "a charge, given to another": f"UPDATE ledger SET conversation = zeroblob(16) WHERE conversation = {ROOT}",
    "a charge, given to another family": f"UPDATE ledger SET family = zeroblob(16) WHERE conversation = {ROOT}",
    "a charge, made that of a deleted conversation": f"UPDATE ledger SET deleted = 1 WHERE conversation = {ROOT}",
    "a charge, brought in": (
        "INSERT INTO ledger SELECT tenant, family, conversation, usage, deleted, zeroblob(16) FROM ledger "
        f"WHERE conversation = {ROOT}"
    ),
    "what a deleted conversation had spent": """UPDATE ledger SET usage = '{"calls":1}' WHERE id IS NULL""",
    "what a deleted conversation had spent, removed": "DELETE FROM ledger WHERE id IS NULL",
    "what a deleted conversation had spent, in another family": (
        "UPDATE ledger SET family = zeroblob(16) WHERE id IS NULL"
    ),
    "what a deleted conversation was charged": (
        """UPDATE ledger SET usage = '{"calls":1}' WHERE id IS NOT NULL AND deleted <> 0"""
    ),
    "what a deleted conversation was charged, removed": "DELETE FROM ledger WHERE id IS NOT NULL AND deleted <> 0",
    "something written off that was not": (
        "INSERT INTO ledger SELECT tenant, family, conversation, usage, 1, NULL FROM ledger "
        f"WHERE conversation = {ROOT}"
    ),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of every kind, made once."""
    path = tmp_path_factory.mktemp("verify") / "store.db"
    anyio.run(fill, path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(filled, tmp_path / "store.db"))


def change(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements.split("; "):
            assert db.execute(statement).rowcount > 0, f"it changed nothing, so this proves nothing: {statement}"


async def verified(path: Path, conversation: str | None = None, head_digest: bytes | None = None) -> Verification:
    async with await SqliteStore.open(path) as store:
        id = None if conversation is None else (await store.find(conversation)).id
        return await store.verify(id, head_digest=head_digest)


@pytest.mark.parametrize("what", TAMPERED)
async def test_a_change_is_found_and_named(path: Path, what: str) -> None:
    change(path, TAMPERED[what])
    found = await verified(path)
    assert not found.ok, f"nobody noticed that somebody changed {what}"
    assert all(flaw.where and flaw.what for flaw in found.flaws)


async def test_nothing_is_found_in_a_store_that_nobody_changed(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        found = await store.verify()
        assert found.flaws == ()
        assert (found.erased, found.conversations) == (0, 16)
        assert found.records > found.conversations
        assert found.chains > found.conversations
        for item in (await store.conversations(limit=100)).items:
            assert (await store.verify(item.id)).flaws == (), f"{item.name} alone"


IN_ONE = [
    "every payload, wiped",
    "an envelope",
    "the last event, removed",
    "a head, into another family",
    "a revision",
    "settings: risky calls are approved always",
    "standing approvals",
    "a title",
    "when a conversation was made",
    "a lock, given to a turn that is over",
    "how many records a conversation has",
    "what a record says",
    "a birth that says a conversation was forked from its own fork",
    "the salt of a record, removed",
    "a record, removed",
    "an outcome: committed to failed",
    "an outcome: failed to running",
    "who asked for a turn",
    "the input of a failed turn",
    "what a failed turn cost",
    "a failed turn, removed with its steps",
    "a failed turn, removed with its steps and its record",
    "a step",
    "the last step, removed with its count",
    "a charge",
    "a charge, removed",
    "a charge, brought in",
]


@pytest.mark.parametrize("what", IN_ONE)
async def test_a_change_is_found_in_the_conversation_itself(path: Path, what: str) -> None:
    change(path, TAMPERED[what])
    assert not (await verified(path, "root")).ok, f"nobody noticed that somebody changed {what}"


@pytest.mark.parametrize("what", ["every payload, wiped", "what a record says", "a record, removed"])
async def test_a_change_is_found_in_a_fork_of_the_conversation(path: Path, what: str) -> None:
    change(path, TAMPERED[what])
    assert not (await verified(path, "fork")).ok, f"nobody noticed that somebody changed {what}"


async def test_a_flaw_says_in_plain_words_what_is_wrong_and_where(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        root = (await store.find("root")).id
        failed = next(turn.id for turn in (await store.turns(root)).items if turn.outcome == "failed")
    change(path, TAMPERED["settings: risky calls are approved always"])
    change(path, TAMPERED["a failed turn, removed with its steps"])
    assert {(flaw.where, flaw.what) for flaw in (await verified(path)).flaws} == {
        (f"conversation {root}", "its settings are not what its records say"),
        (f"turn {failed}", "it is missing, though a record tells of it"),
    }


async def test_content_may_be_missing_where_an_erasure_names_it(path: Path) -> None:
    """And only there: not in an event beside it, and not the other way round."""
    async with await SqliteStore.open(path) as store:
        root = await store.find("root")
        await store._view.write("erasure", root.id, partial(erase_first, id_to_bytes(root.family)), landed=landed)
        found = await store.verify()
        assert (found.flaws, found.erased) == ((), 2)
        assert (await store.verify(root.id)).ok
    change(path, "UPDATE event SET payload = NULL, salt = NULL WHERE id = (1 << 32) + 4")
    assert [flaw.where for flaw in (await verified(path)).flaws] == ["1-4"]


async def test_the_state_at_a_head_counts_also_where_something_was_erased(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        root = await store.find("root")
        first = (await store.turns(root.id)).items[0]
        await store.erase(new_id(), Erasing(conversations=(root.id,), turn=first.id), reason="asked to")
        found = await store.verify()
        assert found.erased
        assert found.flaws == ()
    change(path, TAMPERED["the state at a head"])
    assert not (await verified(path)).ok


async def test_a_history_that_was_cut_off_is_found_with_a_digest_kept_outside(path: Path) -> None:
    async with await SqliteStore.open(path) as store:
        lone = await store.find("fork")
        first = (await store.turns(lone.id)).items[0]
        await store.rewind(lone.id, fork_of("cut-off"), at=first.id)  # consistent in itself, and yet not what it was
    assert (await verified(path, "fork")).ok
    assert not (await verified(path, "fork", head_digest=lone.head.digest)).ok
    assert (await verified(path, "cut-off", head_digest=lone.head.digest)).ok


async def test_progress_is_told_up_to_the_end(path: Path) -> None:
    told: list[tuple[int, int]] = []
    async with await SqliteStore.open(path) as store:
        await add_events(store, 5000)
        found = await store.verify(progress=lambda done, total: told.append((done, total)))
    assert len(told) >= 3
    assert told == sorted(told)
    assert {total for _, total in told} == {found.events + found.records}
    assert told[-1][0] == told[-1][1]


def erase_first(family: bytes, db: Database, scope: Scope) -> None:
    """Erases two events as an erasure does: their content, and a record of the family that names them."""
    first, last = (db.execute(SQL["event_at"], {"id": (1 << 32) + n}).fetchone()["chain_digest"] for n in (1, 2))
    db.execute("UPDATE event SET payload = NULL, salt = NULL WHERE id IN ((1 << 32) + 1, (1 << 32) + 2)")
    erased = Erasure(new_id(), "asked to", (ErasedRun(first, last, 2),))
    records.tell_in(db, scope, family_chain(family), Fact(kind="erased", time=scope.now, erased=erased))


def landed(db: Database, scope: Scope) -> bool:
    return True


async def add_events(store: SqliteStore, count: int) -> None:
    made = await create(store)
    await run(store, made.id, [says(f"{n}") for n in range(count)])
