"""`Tries`: runs the turns of one conversation, and finds the turn or the call that a caller means.

A turn is one try at answering. The caller of ``retry``, ``resume``, ``approve`` and the like usually names no turn and
means the last one that is not committed.
Tests: tests/conversation/test_turns.py, tests/conversation/test_approval.py, tests/conversation/test_streaming.py.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from forkpoint.agent.agent import Limits
from forkpoint.agent.arguments import decode_as
from forkpoint.backend.callbacks import Callback, Update, tell_all
from forkpoint.backend.messages import Given, Message, as_message, as_result
from forkpoint.backend.names import TurnId, as_turn
from forkpoint.backend.options import Continuation, DecidedCall, Decision, How, NewTurn
from forkpoint.backend.results import Call, Turn
from forkpoint.conversation.handle import Handle
from forkpoint.errors import BadArgument, CallChanged, NoSuchTurn, NothingToRun, NotShown, TurnFailed
from forkpoint.events import ToolResult, UserMessage
from forkpoint.llm.model import LLM
from forkpoint.updates import TurnJoined, TurnStarted


class Tries:
    """The turns of one conversation that are run from here, and the messages that wait for the next one."""

    def __init__(self, handle: Handle, callbacks: Iterable[Callback]) -> None:
        self.pending: list[UserMessage] = []
        self._handle = handle
        self._callbacks = tuple(callbacks)
        self._shown = ShownCalls()
        self._task: tuple[UserMessage, str | None] | None = None  # of a sub-agent, with the key of its turn

    # Running.

    def given(self, message: Message | None, results: Mapping[str, Message | ToolResult] | None) -> tuple[Given, ...]:
        """The input of the next turn: results of calls, pending messages, and this one. Raises `NothingToRun`."""
        answered = [as_result(call, result) for call, result in (results or {}).items()]
        given: tuple[Given, ...] = (*answered, *self.pending, *([] if message is None else [as_message(message)]))
        if not given:
            raise NothingToRun(self._handle.id, "; after a turn that failed, use retry() or resume()")
        return given

    def set_task(self, task: UserMessage, key: str | None) -> None:
        """Queues the task of a sub-agent. The turn that it goes into has this key, unless its caller gives another."""
        self.pending.append(task)
        self._task = (task, key)

    async def run(
        self,
        given: tuple[Given, ...],
        *,
        go_on: bool = False,
        retry_of: str | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
        also: Callback | None = None,
    ) -> Turn:
        """Runs a turn with this input, or without one. ``also`` is a further callback."""
        handle = self._handle
        if key is None and self._task is not None and any(one is self._task[0] for one in given):
            key = self._task[1]
        handle.answerer()  # raises if nobody answers, before anything is opened
        backend = await handle.backend(keep_draft=True)
        agent = handle.answerer()  # now with what its project says
        await handle.keep_trust(backend)
        tell = self.teller(also)
        async with handle.first_turn(backend) as begun:

            def told(update: Update) -> None:
                if isinstance(update, TurnStarted | TurnJoined):
                    begun(update.conversation)
                    self._take(given)
                tell(update)

            try:
                new = NewTurn(
                    given=given,
                    go_on=go_on,
                    draft=handle.draft,
                    retry_of=retry_of,
                    supersede=supersede,
                    key=key,
                    if_revision=if_revision,
                    how=How(allow=handle.allow),
                )
                turn = await backend.turns.run(handle.id, agent, new, told)
            except TurnFailed:
                begun(handle.id)  # a turn that failed was begun, also if no update said so
                self._take(given)
                raise
            begun(turn.conversation)
            self._take(given)
        return self.seen(turn)

    async def go_on(
        self, *, key: str | None = None, if_revision: int | None = None, also: Callback | None = None
    ) -> Turn:
        """Runs a turn without input. Messages that wait for the next turn go on waiting."""
        if self._handle.draft is not None:
            raise NothingToRun.going_on(self._handle.id, "nothing was said in it yet")
        return await self.run((), go_on=True, key=key, if_revision=if_revision, also=also)

    async def retry(self, turn: TurnId | None, key: str | None, model: LLM | str | None = None) -> Turn:
        """Runs the input of a turn again; with another model, if one is given."""
        handle = self._handle
        if key is not None and turn is None and handle.draft is None:  # the key's own turn is not what is retried
            made = await (await handle.backend()).turns.made_with(handle.id, key)
            turn = None if made is None else made.retry_of
        failed = await self.find("retry", turn)
        if failed.outcome == "committed":
            why = f"turn {failed.id} is committed; rewind before it, and run its message"
            raise NoSuchTurn(handle.id, "retry", why)
        if not failed.given and not failed.go_on:
            raise NoSuchTurn(handle.id, "retry", f"turn {failed.id} has no input")
        if model is not None:
            await handle.use_model(model)
        if failed.outcome in {"awaiting_approval", "interrupted"}:
            backend = await handle.backend()
            await backend.turns.make_way(handle.id, failed.id, handle.answerer(), allow=handle.allow)
        return await self.run(failed.given, go_on=failed.go_on, retry_of=failed.id, key=key)

    async def resume(
        self, turn: str, *, decision: Decision | None = None, rerun: Collection[str] = (), limits: Limits | None = None
    ) -> Turn:
        """Goes on with a turn."""
        handle = self._handle
        backend, agent = await handle.backend(), handle.answerer()
        await handle.keep_trust(backend)
        how = Continuation(decision=decision, rerun=tuple(rerun), how=How(allow=handle.allow, limits=limits))
        return self.seen(await backend.turns.resume(handle.id, turn, agent, how, self.teller()))

    async def approve(
        self,
        calls: Sequence[str | Call],
        arguments: Mapping[str, Mapping[str, Any] | str] | None,
        by: str | None,
        always: str | None,
    ) -> Turn:
        """Approves calls that wait and that this object has shown, and goes on with their turn.

        Without ``calls`` these are all that wait and were shown: never a call that came to wait after that.
        """
        turn = await self.find("approve", None, open=True)
        if calls:
            chosen = [self._shown_call(call, turn) for call in calls]
        else:
            shown = {call.digest for call in self._shown.calls(turn.id)}
            chosen = [call for call in turn.waiting if call.digest in shown]
            if turn.waiting and not chosen:
                raise NotShown(self._handle.id, _named(turn.waiting))
        changed = {id: as_arguments(id, given) for id, given in (arguments or {}).items()}
        if strangers := [id for id in changed if id not in {call.id for call in chosen}]:
            why = f"it is not among the calls to approve: {_named(chosen)}"
            raise BadArgument("approve()", f"the arguments for call {strangers[0]!r}", why)
        decided = tuple(DecidedCall(call.id, call.digest, changed.get(call.id)) for call in chosen)
        return await self.resume(turn.id, decision=Decision(True, decided, by, always=always))

    async def deny(self, calls: Sequence[str | Call], by: str | None, reason: str | None) -> Turn:
        """Denies calls that wait, and goes on with their turn. Denying is safe, so they need not have been shown.

        Without ``calls`` these are all that wait now. A `Call` is denied only if it still waits as it is.
        """
        turn = await self.find("deny", None, open=True)
        decided = [
            DecidedCall(call.id, call.digest) if isinstance(call, Call) else DecidedCall(call, None)
            for call in calls or turn.waiting
        ]
        return await self.resume(turn.id, decision=Decision(False, tuple(decided), by, reason))

    async def open_turn(self) -> Turn | None:
        """The turn that is open now, or None. Its waiting calls have then been shown."""
        if self._handle.draft is not None:
            return None
        info = await self._handle.info()
        if info.open_turn is None:
            return None
        backend = await self._handle.backend()
        turn = await backend.turns.read(self._handle.id, info.open_turn)
        return None if turn.outcome in {"committed", "failed", "cancelled"} else self.seen(turn)

    # Finding.

    async def find(self, verb: str, turn: TurnId | None, *, open: bool = False) -> Turn:
        """The turn that the caller means: the one that is named, else the last one that did not commit.

        With ``open``, turns that have failed or were cancelled do not count. Raises `NoSuchTurn` with the ``verb``.
        """
        handle = self._handle
        if handle.draft is not None:
            raise NoSuchTurn(handle.id, verb, "nothing was run yet")
        backend = await handle.backend()
        if turn is not None:
            return await backend.turns.read(handle.id, as_turn(turn))
        tries = [
            one
            for one in await backend.turns.tries(handle.id)
            if not open or one.outcome not in {"failed", "cancelled"}
        ]
        if not tries:
            why = "none is open" if open else "all that was run from here is committed"
            raise NoSuchTurn(handle.id, verb, why)
        return max(tries, key=lambda one: one.id)

    def _shown_call(self, call: str | Call, turn: Turn) -> Call:
        """The waiting call that the caller means, by its id or itself, as it was shown.

        Raises `NoSuchTurn` if it does not wait, `NotShown` if this object has not shown it, and `CallChanged` if it
        waits with other content.
        """
        id = call if isinstance(call, str) else call.id
        waiting = {one.id: one for one in turn.waiting}
        if (now := waiting.get(id)) is None:
            waits = ", ".join(waiting) or "none"
            why = f"call {id!r} does not wait (turn {turn.id} waits for: {waits})"
            raise NoSuchTurn(self._handle.id, "approve", why)
        seen = [call] if isinstance(call, Call) else [one for one in self._shown.calls(turn.id) if one.id == id]
        if not seen:
            raise NotShown(self._handle.id, _named([now]))
        if now.digest not in {one.digest for one in seen}:
            raise CallChanged(id, turn.id)
        return now

    # Telling.

    def seen(self, turn: Turn) -> Turn:
        """The turn for the caller, who from now on knows which calls wait in it."""
        self._shown.add(turn)
        return self._typed(turn)

    def teller(self, also: Callback | None = None) -> Callback:
        """One callback for all who listen to this conversation, and for ``also``."""
        tell = tell_all([*self._callbacks, *([] if also is None else [also])])
        return lambda update: tell(self.seen(update) if isinstance(update, Turn) else update)

    def _typed(self, turn: Turn) -> Turn:
        """The turn with its answer as the agent's output type."""
        output = self._handle.agent.output if self._handle.agent is not None else None
        if output is None or turn.outcome != "committed":
            return turn
        with suppress(ValueError):  # the agent had another output type when the turn was run, or none
            return replace(turn, output=decode_as(output, turn.text))
        return turn

    def _take(self, given: Sequence[Given]) -> None:
        """Removes the input of a turn that has begun from the pending messages."""
        for message in given:
            for place, pending in enumerate(self.pending):
                if pending is message:  # an equal message may have been sent for a later turn
                    del self.pending[place]
                    break


class ShownCalls:
    """The waiting calls of the open turn that somebody was shown: each `Turn` that an object hands out shows its own.

    A conversation has one open turn at a time, so those of an earlier turn are forgotten.
    """

    def __init__(self) -> None:
        self._turn: str | None = None
        self._calls: frozenset[Call] = frozenset()

    def add(self, turn: Turn) -> None:
        """Notes the waiting calls of a turn that is handed out."""
        if turn.outcome == "awaiting_approval":
            before = self._calls if self._turn == turn.id else frozenset()
            self._turn, self._calls = turn.id, before | frozenset(turn.waiting)

    def calls(self, turn: str) -> frozenset[Call]:
        """The calls of a turn that were shown."""
        return self._calls if turn == self._turn else frozenset()


def as_arguments(call: str, given: Mapping[str, Any] | str) -> str:
    """Arguments that somebody gives for a call, as text: a text as it is, a mapping as JSON. Raises `BadArgument`."""
    if isinstance(given, str):
        return given
    try:
        return msgspec.json.encode(dict(given)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        why = f"they have no JSON form ({error})"
        raise BadArgument("approve()", f"the arguments for call {call!r}", why) from error


def _named(calls: Iterable[Call]) -> str:
    return ", ".join(f"{call.tool} {call.id}" for call in calls) or "none"
