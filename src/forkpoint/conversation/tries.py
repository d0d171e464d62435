"""`Tries`: runs the turns of one conversation, and finds the turn or the call that a caller means.

A turn is one try at answering. The caller of ``retry``, ``resume``, ``approve`` and the like usually names no turn and
means the last one that is not committed.
Tests: tests/conversation/test_turns.py, tests/conversation/test_approval.py, tests/conversation/test_streaming.py.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from forkpoint.agent.agent import Limits
from forkpoint.agent.arguments import decode_as
from forkpoint.backend.callbacks import Callback, Update, tell_all
from forkpoint.backend.messages import Given, Message, as_message, as_result
from forkpoint.backend.names import as_turn
from forkpoint.backend.options import Continuation, Decision, How, NewTurn
from forkpoint.backend.results import Call, Turn
from forkpoint.conversation.handle import Handle
from forkpoint.errors import NoSuchTurn, NothingToRun, TurnFailed
from forkpoint.events import ToolResult, UserMessage
from forkpoint.updates import TurnJoined, TurnStarted


class Tries:
    """The turns of one conversation that are run from here, and the messages that wait for the next one."""

    def __init__(self, handle: Handle, callbacks: Iterable[Callback]) -> None:
        self.pending: list[UserMessage] = []
        self._handle = handle
        self._callbacks = tuple(callbacks)
        self._shown: Turn | None = None  # the turn that waits for an approval, as this object has shown it

    # Running.

    def given(self, message: Message | None, results: Mapping[str, Message | ToolResult] | None) -> tuple[Given, ...]:
        """The input of the next turn: results of calls, pending messages, and this one. Raises `NothingToRun`."""
        answered = [as_result(call, result) for call, result in (results or {}).items()]
        given: tuple[Given, ...] = (*answered, *self.pending, *([] if message is None else [as_message(message)]))
        if not given:
            raise NothingToRun(self._handle.id, "; after a turn that failed, use retry() or resume()")
        return given

    async def run(
        self,
        given: tuple[Given, ...],
        *,
        retry_of: str | None = None,
        supersede: bool = False,
        key: str | None = None,
        if_revision: int | None = None,
        also: Callback | None = None,
    ) -> Turn:
        """Runs a turn with this input. ``also`` is told of it, as the callbacks are."""
        handle = self._handle
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

    async def retry(self, turn: str | Turn | None, key: str | None) -> Turn:
        """Runs the input of a turn again."""
        handle = self._handle
        failed = await self.find("retry", turn)
        if failed.outcome == "committed":
            why = f"turn {failed.id} is committed; rewind before it, and run its message"
            raise NoSuchTurn(handle.id, "retry", why)
        if not failed.given:
            raise NoSuchTurn(handle.id, "retry", f"turn {failed.id} has no input")
        if failed.outcome in {"awaiting_approval", "interrupted"}:
            backend = await handle.backend()
            await backend.turns.check(handle.id, handle.answerer(), allow=handle.allow)
            await backend.turns.discard(handle.id, failed.id)  # this turn, and no other that is open by then
        return await self.run(failed.given, retry_of=failed.id, key=key)

    async def resume(
        self, turn: str, *, decision: Decision | None = None, rerun: Collection[str] = (), limits: Limits | None = None
    ) -> Turn:
        """Goes on with a turn."""
        handle = self._handle
        backend, agent = await handle.backend(), handle.answerer()
        await handle.keep_trust(backend)
        how = Continuation(decision=decision, rerun=tuple(rerun), how=How(allow=handle.allow, limits=limits))
        return self.seen(await backend.turns.resume(handle.id, turn, agent, how, self.teller()))

    async def decide(
        self, verb: str, calls: Sequence[str | Call], decision: Callable[[tuple[Call, ...]], Decision]
    ) -> Turn:
        """Decides on calls as the caller saw them, and goes on with their turn.

        Without ``calls`` the decision is on all calls that wait and that this object has shown: never on a call that
        came to wait after that. An object that has shown none decides on all that wait now.
        """
        turn = await self.find(verb, None, open=True)
        shown = turn if self._shown is None else self._shown
        if calls:
            chosen = tuple(self._meant(verb, call, shown, turn) for call in calls)
        else:
            chosen = tuple(call for call in shown.waiting if call in turn.waiting)
            if not chosen and turn.waiting:
                why = f"other calls wait now than were shown; look at turn({turn.id!r})"
                raise NoSuchTurn(self._handle.id, verb, why)
        return await self.resume(turn.id, decision=decision(chosen))

    # Finding.

    async def find(self, verb: str, turn: str | Turn | None, *, open: bool = False) -> Turn:
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

    def _meant(self, verb: str, call: str | Call, shown: Turn, now: Turn) -> Call:
        """The call that the caller names, by its id or itself. Raises `NoSuchTurn` unless it still waits as shown."""
        if isinstance(call, str) and len([one for one in now.calls if one.id == call]) > 1:
            why = f"the model has used the id {call!r} for several calls; pass the one of turn.waiting itself"
            raise NoSuchTurn(self._handle.id, verb, why)
        meant = call if isinstance(call, Call) else next((one for one in shown.waiting if one.id == call), None)
        if meant is None or meant not in now.waiting:
            id, waits = call if isinstance(call, str) else call.id, ", ".join(one.id for one in now.waiting) or "none"
            why = f"call {id!r} does not wait, or not as it was shown (turn {now.id} waits for: {waits})"
            raise NoSuchTurn(self._handle.id, verb, why)
        return meant

    # Telling.

    def seen(self, turn: Turn) -> Turn:
        """The turn for the caller, who from now on knows which calls wait in it."""
        if turn.outcome == "awaiting_approval":
            self._shown = turn
        elif self._shown is not None and self._shown.id == turn.id:
            self._shown = None
        return self._typed(turn)

    def teller(self, also: Callback | None = None) -> Callback:
        """One callback for all who listen to this conversation, and for ``also``."""
        tell = tell_all([*self._callbacks, *([] if also is None else [also])])
        return lambda update: tell(self._typed(update) if isinstance(update, Turn) else update)

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
