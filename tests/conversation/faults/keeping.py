"""A keep that is struck at every statement, and what it starts from."""

from pathlib import Path

from tests.conversation.faults.statements import FILE

from forkpoint.agent import Agent
from forkpoint.backend.callbacks import Update
from forkpoint.backend.messages import as_message
from forkpoint.backend.options import Draft, ForkOptions, NewTurn
from forkpoint.backend.settings import Settings
from forkpoint.engine.engine import Engine
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore

MINE, THEIRS = Agent("scripted/echo", instructions="Be brief."), Agent("scripted/echo", instructions="Be long.")
BEFORE, AFTER = ["one", "two"], ["one", "other"]
KEY = "the key of the keep"


async def prepare(folder: Path) -> str:
    """A conversation of two turns, and a branch with another agent. Returns the conversation's id."""
    engine = Engine(await SqliteStore.open(folder / FILE))
    id = new_id()
    draft = Draft(id=id, name="build", settings=Settings.of(MINE, None))
    first = await engine.turns.run(id, MINE, NewTurn(given=(as_message("one"),), draft=draft), _quiet)
    await engine.turns.run(id, MINE, NewTurn(given=(as_message("two"),)), _quiet)
    branch, _ = await engine.branches.fork(id, ForkOptions(id=new_id(), name="branch", at=first.id, agent=THEIRS))
    await engine.turns.run(branch.id, THEIRS, NewTurn(given=(as_message("other"),)), _quiet)
    await engine.close()
    return id


def _quiet(update: Update) -> None:
    pass


async def keep(engine: Engine) -> None:
    """Keeps the branch."""
    found, _ = await engine.find("build")
    await engine.branches.keep(found.id, "branch", key=KEY)
