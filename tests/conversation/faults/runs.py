"""One run of the struck turn, and what the caller was told."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, assert_never

import anyio
from tests.conversation.faults.kinds import Fault
from tests.conversation.faults.points import Point
from tests.conversation.faults.scenario import STEERED, STRUCK, Listener, Log, agent_for, llm_for
from tests.conversation.faults.starts import Act, Start, file_in, log_in
from tests.conversation.faults.striking import PATIENCE, Striker

from forkpoint import Agent, AsyncConversation, Conversation, TurnCancelled, TurnFailed
from forkpoint.conversation import Turn
from forkpoint.conversation.portal import check
from forkpoint.errors import Busy, ForkpointError, NoSuchTurn, NotFound, OutcomeUnknown, StoreUnavailable
from forkpoint.ids import new_id
from forkpoint.store.sqlite import SqliteStore
from forkpoint.store.values import OpenTurn

KEY = "the key of the turn"

Told: TypeAlias = Literal["returned", "failed", "cancelled", "unknown", "refused", "raised", "killed"]


class Run:
    """A turn that was struck, and all that is left of it."""

    def __init__(self, start: Start, folder: Path, fault: Fault | None, listener: Listener | str | None) -> None:
        self.start = start
        self.file = file_in(folder)
        self.fault = fault
        self.log = Log(log_in(folder))
        self.listener = listener
        self.told: Told = "killed"
        self.struck = False  # whether it came to the point
        self.turn: Turn | None = None  # what was returned
        self.error: BaseException | None = None  # what was raised
        self.cancelled: Turn | None = None  # what `cancel()` returned
        self.points: list[Point] = []
        self.store: SqliteStore | None = None  # while it is still open
        self.conversation: AsyncConversation | None = None  # the object that ran the turn, while it is still there
        self._steers: AsyncConversation | None = None  # by which somebody steers the turn, if somebody does

    def agent(self) -> Agent:
        steer = self._steer if self.start.act == "steer" else None
        return agent_for(self.log, llm_for(self.log, self.listener), asks=self.start.asks, steer=steer)

    async def open(self, store: SqliteStore) -> AsyncConversation:
        """The conversation, as somebody who has only its id and the agent gets hold of it."""
        agent, id, told = self.agent(), self.start.conversation, [self.log.told]
        try:
            self._steers = await AsyncConversation.open(id, agent=agent, store=store, callbacks=told)
        except NotFound:
            self._steers = AsyncConversation(agent, conversation_id=id, store=store, callbacks=told)
        return self._steers

    async def _steer(self) -> None:
        """Somebody sends the turn a message, once, and notes down what they hear."""
        assert self._steers is not None
        if self.log.phase != "first":
            return
        self.log.write("steered", "sent")
        try:
            await self._steers.steer(STEERED)
        except OutcomeUnknown:
            self.log.write("steered", "unknown")
        except ForkpointError:
            self.log.write("steered", "refused")
        except Exception:
            self.log.write("steered", "raised")
        else:
            self.log.write("steered", "accepted")

    def heard(self) -> list[str]:
        """What the sender of the message has noted down, of the sending itself on."""
        return [entry.call for entry in self.log.read() if entry.what == "steered"]

    def returned(self, turn: Turn | None) -> None:
        """Notes down what the caller got."""
        self.turn = turn
        self.told = "cancelled" if turn is None else "returned"

    def raised(self, error: BaseException) -> None:
        """Notes down what the caller was told. A plain cancellation says nothing about the turn."""
        match error:
            case asyncio.CancelledError() | KeyboardInterrupt():
                self.told = "cancelled"
                return
            case TurnCancelled():
                self.told = "cancelled"
            case TurnFailed():
                self.told = "failed"
            case OutcomeUnknown():
                self.told = "unknown"
            case ForkpointError():
                self.told = "refused"
            case _:
                self.told = "raised"
        self.error = error


@asynccontextmanager
async def struck(run: Run, *, company: bool) -> AsyncIterator[Run]:
    """Runs the turn with its fault, in this loop. What it was run with stays open in the block."""
    striker = Striker(run.fault, str(run.file.parent))
    run.store = striker.store = store = await SqliteStore.open(run.file, connect=striker.disk.connect)
    hangs = False
    try:
        run.conversation = striker.conversation = await run.open(store)
        held = await store.begin(run.start.bystander, new_id()) if company else None
        async with _patience() as enough:
            striker.start()
            try:
                task = asyncio.create_task(_act(run.start.act, run.conversation, striker.scope))
                await asyncio.wait([task, enough], return_when=asyncio.FIRST_COMPLETED)
            finally:
                striker.stop()
        run.points, run.struck = striker.watch.points, striker.struck
        hangs = not task.done()
        if hangs:
            raise TimeoutError(f"it hangs; the last it came to was {run.points[-1]}")
        try:
            run.returned(task.result())
        except BaseException as error:
            run.raised(error)
        if striker.closing is not None:
            await striker.closing
        if striker.cancelled is not None:
            with suppress(NoSuchTurn, Busy):  # it came before the turn had begun
                run.cancelled = await striker.cancelled
        if isinstance(held, OpenTurn):
            with suppress(StoreUnavailable):
                await store.cancel(held)
        yield run
    finally:
        if not hangs:  # if the writer's thread has died, this would wait for good
            if run.conversation is not None:
                await run.conversation.close()
            await store.close()


def struck_in_sync(run: Run, *, company: bool) -> None:
    """Runs the turn with its fault, by a program that is not async: here, in the process's main thread."""
    portal = check("the fault matrix")
    striker: Striker = portal.call(_striker, run)
    store = portal.call(partial(SqliteStore.open, run.file, connect=striker.disk.connect))
    conversation = Conversation.open(run.start.conversation, agent=run.agent(), store=store, callbacks=[run.log.told])
    held = portal.call(store.begin, run.start.bystander, new_id()) if company else None
    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    portal.call(striker.start)
    try:
        run.returned(conversation.run(STRUCK))
        if striker.struck and run.fault is not None and run.fault.how == "Ctrl-C":
            interrupted.wait(PATIENCE)  # it came too late
    except BaseException as error:
        if run.turn is None:
            run.raised(error)
    portal.call(striker.stop)
    run.points, run.struck = striker.watch.points, striker.struck
    if isinstance(run.error, OutcomeUnknown):
        with suppress(NotFound):
            conversation.settle(run.error.id)
    if isinstance(held, OpenTurn):
        portal.call(store.cancel, held)
    conversation.close()
    portal.call(store.close)


async def _striker(run: Run) -> Striker:
    return Striker(run.fault, str(run.file.parent))


@asynccontextmanager
async def _patience() -> AsyncIterator["asyncio.Task[Any]"]:
    """Ends after a while. The time is the system's own, for the loop's may be moved on."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    clock = threading.Timer(PATIENCE, loop.call_soon_threadsafe, [over.set])
    clock.start()
    waiting = loop.create_task(over.wait())
    try:
        yield waiting
    finally:
        clock.cancel()
        waiting.cancel()


async def _act(act: Act, conversation: AsyncConversation, scope: anyio.CancelScope) -> Turn | None:
    with scope:
        match act:
            case "run" | "first" | "wait" | "sync" | "steer":
                return await conversation.run(STRUCK)
            case "keyed":
                return await conversation.run(STRUCK, key=KEY)
            case "go on":
                return await conversation.go_on(key=KEY)
            case "stream":
                async with conversation.run_stream(STRUCK) as stream:
                    async for _ in stream:
                        pass
                return stream.turn
            case "resume" | "resume after a kill":
                return await conversation.resume()
            case "approve":
                await conversation.open_turn()  # an approval is of what was shown
                return await conversation.approve()
            case _ as never:
                assert_never(never)
    return None
