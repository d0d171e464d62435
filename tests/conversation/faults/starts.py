"""Where the turn starts from: a store on disk, made once and copied for each run.

Every run thus has the same ids, keys and times behind it, so that all that it sends can be compared byte for byte.
"""

import shutil
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from msgspec import Struct
from msgspec.structs import replace
from tests.conversation.faults.scenario import FIRST, STRUCK, Listener, Log, agent_for, llm_for

from forkpoint import AsyncConversation, TurnFailed
from forkpoint.conversation import Turn
from forkpoint.events import Event
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import Outcome

Act: TypeAlias = Literal[
    "run", "sync", "stream", "keyed", "first", "go on", "steer", "resume", "resume after a kill", "wait", "approve"
]
"""What is struck:

- ``run``; ``sync``: the same by a program that is not async; ``stream``: with somebody who listens; ``keyed``: with an
  idempotency key; ``first``: as a conversation's first turn, which brings it into being; ``go on``: without a message
  and with a key, in a fork that ends after the message; ``steer``: somebody sends it a message while its first tool
  runs;
- ``resume``, of a turn that failed after its first two tools; ``resume after a kill``, of one whose process died before
  the second one's result was written down;
- ``wait``: the turn comes to wait for an approval; ``approve``: it is given.
"""

ACTS: tuple[Act, ...] = get_args(Act)


class Start(Struct, frozen=True):
    """A folder to be copied: a store, and a log of what happened before."""

    act: Act
    folder: str
    conversation: str
    bystander: str  # another conversation in the same store
    stood: Outcome | None = None  # how the turn stands already; None if it is yet to begin
    asks: bool = False  # whether the third tool waits for an approval
    events: int = 0  # how many the conversation has
    paid: int = 0  # how many answers the conversation has paid for, other than the turn's

    def copy(self, to: Path) -> Path:
        """A copy for one run. Gives the store's file."""
        shutil.copytree(self.folder, to)
        return file_in(to)


def file_in(folder: Path) -> Path:
    return folder / "store" / "store.db"


def log_in(folder: Path) -> Path:
    return folder / "log"


async def make_start(folder: Path, listener: Listener | None, *, asks: bool = False) -> Start:
    """A conversation with one turn, in which the next is to be struck."""
    (folder / "store").mkdir(parents=True)
    log = Log(folder / "earlier log")
    async with await SqliteStore.open(file_in(folder)) as store:
        agent = agent_for(log, llm_for(log, listener), asks=asks)
        async with AsyncConversation(agent, store=store) as conversation:
            turn = await conversation.run(FIRST)
        async with AsyncConversation(agent, store=store) as bystander:
            await bystander.run(FIRST)
    log.close()
    log_in(folder).touch()
    act: Act = "wait" if asks else "run"
    return Start(act, str(folder), conversation.id, bystander.id, asks=asks, events=len(turn.events), paid=1)


def as_first(start: Start) -> Start:
    """The turn is to be the first of a conversation that does not exist yet."""
    return replace(start, act="first", conversation=new_id(), events=0, paid=0)


async def cut(start: Start, folder: Path, listener: Listener | None) -> Start:
    """A fork ends after the message of the turn, and the turn is to go on from there without one."""
    start.copy(folder)
    log = Log(folder / "log of the source")
    async with await SqliteStore.open(file_in(folder)) as store:
        agent = agent_for(log, llm_for(log, listener))
        async with await AsyncConversation.open(start.conversation, agent=agent, store=store) as source:
            turn = await source.run(STRUCK)
            message = next(event for event in turn.events if event.envelope.kind == "user_message")
            assert isinstance(message, Event)
            async with await source.fork(at=message) as fork:
                events = len(await fork.events())
    log.close()
    return replace(start, act="go on", folder=str(folder), conversation=fork.id, events=events, paid=0)


async def failed(start: Start, folder: Path, listener: Listener | None) -> Start:
    """The turn has failed after its first two tools, and is to be resumed."""
    turn = await _run_earlier(start, folder, listener, fails=True)
    assert turn is None, "the turn was to fail"
    return replace(start, act="resume", folder=str(folder), stood="failed")


async def waiting(start: Start, folder: Path, listener: Listener | None) -> Start:
    """The turn waits for an approval."""
    turn = await _run_earlier(start, folder, listener)
    assert turn is not None, "the turn was to wait"
    return replace(start, act="approve", folder=str(folder), stood="awaiting_approval")


async def _run_earlier(start: Start, folder: Path, listener: Listener | None, *, fails: bool = False) -> Turn | None:
    start.copy(folder)
    log = Log(log_in(folder), "before")
    async with await SqliteStore.open(file_in(folder)) as store:
        agent = agent_for(log, llm_for(log, listener, fails=fails), asks=start.asks)
        conversation = await AsyncConversation.open(start.conversation, agent=agent, store=store, callbacks=[log.told])
        try:
            return await conversation.run(STRUCK)
        except TurnFailed:
            return None
        finally:
            await conversation.close()
            log.close()


def killed(start: Start, folder: Path) -> Start:
    """A run that was killed is what the next ones start from."""
    log = log_in(folder)
    log.write_bytes(log.read_bytes().replace(b'"phase":"first"', b'"phase":"before"'))
    return replace(start, act="resume after a kill", folder=str(folder), stood="interrupted")
