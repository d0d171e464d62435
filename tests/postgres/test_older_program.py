"""The program that brought format 1 of PostgreSQL runs beside the one of this tree, on one database.

Its source is taken from the history of the clone. It is what its wheel would hold, and needs no build.
"""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres.test_rolling_formats import CONTRACT, EXPAND, know, turn

from forkpoint.ids import new_id
from forkpoint.store.postgres.store import PostgresStore
from forkpoint.store.values import NewConversation, NewFork
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio

COMMIT = "ab85a34b0a9e5636e0e361732d73db5b0982a258"
ROOT = Path(__file__).parents[2]

_PROGRAM = """\
import asyncio, json, sys
from forkpoint.ids import new_id
from forkpoint.store import open_store
from forkpoint.testing.samples import exchange

async def main(url):
    try:
        store = await open_store(url)
    except Exception as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return
    async with store:
        print(json.dumps({"opened": True}), flush=True)
        for line in iter(sys.stdin.readline, ""):
            what, conversation = json.loads(line)
            try:
                if what == "turn":
                    await store.commit(await store.begin(conversation, new_id()), exchange("from the older one"))
                elif what == "begin":
                    begun = await store.begin(conversation, new_id())
                    await store.journal(begun, exchange("from the older one")[:1])
                elif what == "verify":
                    assert not (await store.verify()).flaws
                print(json.dumps({"events": len(await store.events(conversation))}), flush=True)
            except Exception as error:
                print(json.dumps({"failed": repr(error)}), flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def older_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was at that commit."""
    packed = subprocess.run(["git", "archive", COMMIT, "src/forkpoint"], cwd=ROOT, capture_output=True, timeout=60)
    if packed.returncode:
        pytest.skip(f"this clone has no history: git fetch --unshallow ({packed.stderr.decode().strip()})")
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


class OlderProgram:
    """A process of the older program. It does what it is told, and says how many events a conversation has then."""

    def __init__(self, source: Path, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(source)},
        )
        self.said = self._hear()

    def do(self, what: str, conversation: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, conversation]) + "\n")
        self._process.stdin.flush()
        return self._hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline() or '{"ended": true}')
        return found


@pytest.fixture
def older(older_source: Path, postgres: str) -> Iterator[OlderProgram]:
    program = OlderProgram(older_source, postgres)
    yield program
    program.kill()


async def test_an_older_program_goes_on_beside_a_newer_one_through_an_expansion_until_the_newer_tightens(
    older_source: Path, older: OlderProgram, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert older.said == {"opened": True}, "the older program makes the store"
    id = new_id()
    with monkeypatch.context() as program:
        know(program, EXPAND)
        async with await PostgresStore.open(postgres) as new:
            await new.create(NewConversation(id=id, name="shared"))
            await turn(new, id)
            assert older.do("turn", id) == {"events": 4}
            await turn(new, id)
            branch = await new.fork(id, NewFork(id=new_id(), cache="{}"))
            assert older.do("turn", branch.id) == {"events": 8}
            assert len(await new.events(id)) == 6
            assert older.do("verify", id) == {"events": 6}
            assert not (await new.verify()).flaws
    with monkeypatch.context() as program:
        know(program, EXPAND, CONTRACT)
        async with await PostgresStore.open(postgres) as new:
            await turn(new, id)
            assert not (await new.verify()).flaws
    refused = OlderProgram(older_source, postgres)
    try:
        assert "only a newer Forkpoint may use" in refused.said["refused"]
    finally:
        refused.kill()


async def test_a_turn_of_an_older_program_that_died_goes_on_in_the_newer_one(
    older: OlderProgram, postgres: str
) -> None:
    async with await PostgresStore.open(postgres) as new:
        id = new_id()
        await new.create(NewConversation(id=id))
        assert older.do("begin", id) == {"events": 0}
        older.kill()
        with psycopg.connect(postgres, autocommit=True) as db:
            db.execute("UPDATE holder SET seen = seen - 31000000")  # half a minute later
        (left,) = (await new.orphans()).items
        taken = await new.resume(left.id)
        await new.commit(taken, exchange("from the newer one")[1:])
        assert len(await new.events(id)) == 2
        assert not (await new.verify()).flaws
