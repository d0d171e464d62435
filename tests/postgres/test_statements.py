"""The statements for PostgreSQL: each is one that the server understands, and the hot ones find their rows by a key."""

import re
from collections.abc import Iterator
from importlib import resources

import psycopg
import pytest
from tests.postgres.fixtures import Databases

from forkpoint.store.sql import migrations, postgres_preludes, postgres_statements, statements, with_placeholders

READING = postgres_statements(locking=False)
WRITING = postgres_statements(locking=True)
PRELUDES = postgres_preludes()

ONLY_SQLITE = {
    # A store in PostgreSQL has no earlier format whose rows have no records, steps without digests or unknown copies.
    *("conversations_without_a_chain", "turns_to_adopt", "index_turns", "drop_index_of_turns", "begin_chain"),
    *("close_charges_of_deleted_conversations", "deleted_conversations", "charges_closed"),
    *("ledger_of_a_conversation", "charges_of_no_conversation"),
    *("steps_without_a_digest", "seal_step", "sum_up_steps", "events_that_may_be_copies"),
    # What is asked of a file: of one before it is migrated, and of a copy.
    *("has_seals", "read_marks"),
}
"""Statements that PostgreSQL does without."""

SAID = re.compile(r"%\((\w+)\)s")
UTILITY = ("LOCK", "DO", "VACUUM", "SET", "LISTEN", "NOTIFY")  # such statements cannot be prepared

MANY = 5000

FILL = """
CREATE FUNCTION pg_temp.id(n bigint) RETURNS bytea LANGUAGE sql AS 'SELECT decode(lpad(to_hex(n), 32, ''0''), ''hex'')';
CREATE TEMPORARY TABLE one AS
SELECT n, pg_temp.id(n) AS id, pg_temp.id(n / 10) AS family, n % 100 = 0 AS is_open FROM generate_series(1, :many) AS n;

INSERT INTO segment (tenant, family, base_digest, landmarks) SELECT 'default', id, '', 1 FROM one ORDER BY n;

INSERT INTO event (tenant, segment, ordinal, turn, envelope, payload, payload_digest, chain_digest)
SELECT 'default', n, ordinal, id, '{}', 'x', '', '' FROM one, generate_series(1, 4) AS ordinal;

INSERT INTO conversation (
  tenant, id, name, family, revision, head, head_digest, head_totals, head_open_calls, open_segment, open_turn,
  settings, cache, lineage_kind, lineage_source, own_from, inherited, carries_metrics, tags, draft, created, updated,
  used
)
SELECT 'default', id, n::text, family, 0, n::bigint << 32 | 4, '', '{}', '{}', n, CASE WHEN is_open THEN id END,
  '{}', '{}', (ARRAY['root', 'fork', 'aside', 'side', 'sub_agent'])[1 + n % 5], family, 0, '{}', 0,
  CASE WHEN n % 10 = 0 THEN '{"a":"b","n":"' || n % 100 || '"}' ELSE '{}' END, (n % 100 = 7)::int, n, n, n
FROM one;

INSERT INTO turn (id, tenant, conversation, kind, outcome, "end", holder, token, usage, totals, open_calls, started)
SELECT id, 'default', id, 'turn', CASE WHEN is_open THEN 'running' WHEN n % 50 = 1 THEN 'failed' ELSE 'committed' END,
  CASE WHEN is_open THEN NULL ELSE n::bigint << 32 | 4 END, 'holder', 'token', '{}', '{}', '{}', n
FROM one;

INSERT INTO step (tenant, turn, number, envelope, payload, payload_digest)
SELECT 'default', id, 1, '{}', '{}', '' FROM one;
INSERT INTO idempotency (tenant, key, operation, subject, target, request, created)
SELECT 'default', n::text, 'turn', id, id, '', n FROM one;
INSERT INTO record (tenant, chain, number, kind, digest) SELECT 'default', id, 1, 'committed', '' FROM one;
INSERT INTO landmark (tenant, id, kind) SELECT 'default', n::bigint << 32 | 1, 'condensed' FROM one;
ANALYZE;
"""


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


PLACE = 777 << 32
VALUES: dict[str, object] = {"tenant": "default", "ids": _id(1) + _id(2), "held": _id(1) + _id(1)}
VALUES |= dict.fromkeys(("id", "turn", "of", "family", "conversation", "open_turn", "target", "chain"), _id(777))
VALUES |= {"before": _id(999), "token": b"token", "steps": None}
VALUES |= {"kind": "root", "status": "running", "name": "777", "key": "777", "call": "call", "usage": "{}"}
VALUES |= {"segment": 777, "ordinal": 2, "upto": 2, "first": PLACE | 1, "last": PLACE | 2, "limit": 20, "used": 500}
VALUES |= dict.fromkeys(("after", "since", "now", "revision", "staged", "more"), 0)
VALUES |= {"tag": '{"n":"20"}', "tags": '{"a":"b"}', "dead": "[]", "kinds": '["condensed"]'}
VALUES |= dict.fromkeys(("drafts", "sub_agents", "sides", "asides", "notes", "budgeted"), 0)

HOT = [
    *(
        "path_events",
        "path_spans",
        "event_at",
        "events_between",
        "links_between",
        "path_landmarks",
        "unmarked_segments",
    ),
    *(
        "turns_in_span",
        "newest_turns_in_span",
        "newest_tries",
        "uncommitted_turns",
        "turn_behind_event",
        "state_of_turn",
    ),
    *(
        "read_conversation",
        "read_revisions",
        "find_conversation",
        "find_child",
        "read_turn",
        "read_steps",
        "read_stops",
    ),
    *("list_by_creation", "list_by_use", "list_drafts", "list_open", "list_family", "list_children", "read_listed"),
    *("list_tagged_by_creation", "list_tagged_by_use", "count_tagged", "count_folded", "use_conversation"),
    *("take_lock", "release_lock", "journal_turn", "ask_cancel", "delete_steps", "read_chain", "read_shared_chain"),
    *("find_key", "free_key", "branches", "charges", "find_charge", "records_after", "last_number"),
    *("lock_conversation", "lock_turn", "with_dependents"),
]
"""Said for each turn, each read or each page of a list: they must cost the same however much the database holds."""


@pytest.fixture(scope="module")
def db(postgres_databases: Databases) -> Iterator[psycopg.Connection]:
    """A database that has as many conversations as it takes for a bad plan to look bad."""
    address = postgres_databases.server.url
    with postgres_databases.fresh() as name, psycopg.connect(address(name), autocommit=True) as db:
        for script in migrations("postgres"):
            db.execute(script.encode())
        db.execute(FILL.replace(":many", str(MANY)).encode())
        db.execute("SET enable_bitmapscan = off")  # as in the sessions of a store
        yield db


def _numbered(text: str) -> str:
    """A statement with the parameters of the server's own PREPARE."""
    numbers = {said: number for number, said in enumerate(dict.fromkeys(SAID.findall(text)), start=1)}
    return SAID.sub(lambda said: f"${numbers[said[1]]}", text).replace("%%", "%")


def _plan(db: psycopg.Connection, name: str, how: str = "EXPLAIN") -> str:
    values = VALUES | ({"id": PLACE | 1} if name == "event_at" else {})
    with psycopg.ClientCursor(db) as cursor, db.transaction(force_rollback=True):
        return "\n".join(line for (line,) in cursor.execute(f"{how} {READING[name]}".encode(), values))


@pytest.mark.parametrize("name", sorted(READING))
def test_each_statement_can_be_prepared(db: psycopg.Connection, name: str) -> None:
    for text in {READING[name], WRITING[name]}:
        if not text.startswith(UTILITY):
            db.execute(f"PREPARE one AS {_numbered(text)}".encode())
            db.execute("DEALLOCATE one")


def test_postgres_has_the_statements_of_sqlite_under_the_same_names() -> None:
    missing = statements("sqlite").keys() - READING.keys()
    assert missing == ONLY_SQLITE


def test_a_statement_has_no_parameter_that_sqlite_does_not_give_it() -> None:
    """The tenant apart, which is added to all."""
    for name in statements("sqlite").keys() & READING.keys():
        given = set(SAID.findall(with_placeholders(statements("sqlite")[name])))
        said = set(SAID.findall(READING[name]))
        assert said <= given | {"tenant"}, name


def test_what_a_writer_says_first_is_a_statement() -> None:
    assert set(PRELUDES.values()) <= READING.keys()
    for name, first in PRELUDES.items():
        assert set(SAID.findall(READING[first])) <= set(SAID.findall(READING[name])), name


def test_every_statement_says_what_it_is_for() -> None:
    for file in resources.files("forkpoint.store.sql").joinpath("postgres").iterdir():
        if file.name.endswith(".sql"):
            for part in re.split(r"^-- name: \w+$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
                assert part.lstrip().startswith("-- "), f"{file.name}: {part}"


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_reads_no_table_and_sorts_no_list(db: psycopg.Connection, name: str) -> None:
    plan = _plan(db, name)
    assert not re.search(r"Seq Scan on (?!holder|meta|chain|budget|ledger)", plan), plan
    assert "Sort" not in plan or name in ("path_spans", "read_steps"), plan


@pytest.mark.parametrize("name", ["event_at", "events_between", "links_between", "segment_contents"])
def test_events_of_one_segment_are_read_from_one_partition(db: psycopg.Connection, name: str) -> None:
    plan = _plan(db, name)
    assert len(set(re.findall(r" on (event_\d+)", plan))) == 1, plan


def test_a_path_is_read_from_the_partitions_of_its_segments_only(db: psycopg.Connection) -> None:
    plan = _plan(db, "path_events", "EXPLAIN (ANALYZE)")
    read = [line for line in plan.splitlines() if " on event_" in line and "never executed" not in line]
    assert len(read) == 1, plan


def test_a_commit_touches_no_index_of_its_conversation(db: psycopg.Connection) -> None:
    """PostgreSQL updates a row in its page (HOT) if no column that stands in an index is changed."""
    commit = """UPDATE conversation
        SET head = (777::bigint << 32) | (1 + revision % 2), revision = revision + 1, updated = updated + 1,
        records = records + 1, open_turn = CASE WHEN open_turn IS NULL THEN id END
        WHERE tenant = 'default' AND name = '777'"""
    with db.transaction(force_rollback=True):
        for _ in range(10):
            db.execute(commit)
        found = db.execute("SELECT pg_stat_get_xact_tuples_hot_updated('conversation'::regclass)").fetchone()
    assert found is not None
    assert found[0] >= 9, "the page may have been full once"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("SELECT :first::bigint >> 32, :a_1", "SELECT %(first)s::bigint >> 32, %(a_1)s"),
        ("VALUES (?, :tenant, ?)", "VALUES (%(0)s, %(tenant)s, %(1)s)"),
        ("SELECT 5 % 2 WHERE a LIKE 'x%'", "SELECT 5 %% 2 WHERE a LIKE 'x%%'"),
        ("SELECT ':no', '?', 'it''s :no', \":no\", :yes", "SELECT ':no', '?', 'it''s :no', \":no\", %(yes)s"),
        ("SELECT 1 -- why :not, don't ask?\n, :x", "SELECT 1 -- why :not, don't ask?\n, %(x)s"),
        ("SELECT a[1:2], '{}'::text", "SELECT a[1:2], '{}'::text"),
    ],
)
def test_parameters_become_placeholders_and_nothing_else_does(written: str, said: str) -> None:
    assert with_placeholders(written) == said
