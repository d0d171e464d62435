"""``forkpoint demo``: what Forkpoint does, shown with a real model, on this machine alone."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Annotated, Any

import typer
from rich.table import Table

from forkpoint.agent.agent import Agent
from forkpoint.cli import figures
from forkpoint.cli.cells import Cell, number
from forkpoint.cli.commands.branches.tree import draw
from forkpoint.cli.commands.local import Yes, bring_library
from forkpoint.cli.common import all_turns
from forkpoint.cli.options import option
from forkpoint.cli.outcome import command, document
from forkpoint.cli.output import Json, console, display, grid, print_json, tell
from forkpoint.conversation import Conversation, Turn, TurnStarted, Verification
from forkpoint.conversation.look import is_remote
from forkpoint.conversation.portal import wait_for
from forkpoint.conversation.visualizer import TerminalVisualizer
from forkpoint.errors import TurnFailed
from forkpoint.llm.local.engine import engine_for, leave
from forkpoint.llm.local.weights import check_ready
from forkpoint.llm.model import LLM
from forkpoint.updates import TextPiece
from forkpoint.wire.documents import info_document, plain, stats_document

MODEL = "local/smollm2"

INSTRUCTIONS = (
    "You are a kind teacher of geography. You answer in one short sentence, in plain words, and you say only what you "
    "are sure of. You never make a list. If somebody asks for a city, you name the city and the country that it is in. "
    "If somebody asks for a river, you name the river and the city. You do not repeat the question, and you do not ask "
    "one."
)

TOO_LONG = "What is this text about? " + "The city is old, and the river that flows through it is long. " * 800

PIECES = 4
"""How much of an answer is heard before it is cut off."""


def demo(
    store: Annotated[
        str | None,
        option("--store FILE", "Keep the conversations of the demo in this file. Default: they are thrown away."),
    ] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Show what Forkpoint does, with a real model: offline, in less than a minute.

    A conversation; a turn that fails and leaves nothing; an answer that is cut off, and a retry; a fork that finds its
    prompt in the cache; both branches continued; the family tree; and a check that history is as it was written.

    The model is local/smollm2, which is small and not always right. Its conversations are thrown away at the end,
    unless you name a file for them with --store.

    \b
    Examples:
      forkpoint demo
      forkpoint demo --store demo.db
    """
    if store is not None and is_remote(store):
        raise typer.BadParameter("the model of the demo runs in this process; name a file", param_hint="--store")
    with ExitStack() as stack:
        address = store or f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/demo.db"
        bring_library([MODEL], yes=yes)
        stack.enter_context(_model_loaded(quiet=json))
        shown = _Demo(address, quiet=json)
        stack.callback(shown.close)
        shown.play()
        if json:
            print_json(shown.document() | {"store": store})
        else:
            shown.farewell(store)
        if not shown.kept_its_promises:
            raise typer.Exit(1)


class _Demo:
    """The conversation that is shown, its fork, and what they came to."""

    def __init__(self, address: str, *, quiet: bool) -> None:
        self._out = console()
        self._out.quiet = quiet
        self._screen = TerminalVisualizer(self._out)
        agent = Agent(LLM(MODEL, temperature=0, max_tokens=40), instructions=INSTRUCTIONS)
        self._main = Conversation(agent, store=address, title="Capitals", visualizer=self._screen)
        self._fork: Conversation | None = None
        self._unchanged: list[bool] = []
        self._verified: list[Verification] = []

    def play(self) -> None:
        """Everything, from the first question to the check."""
        main = self._main
        self._chapter("A conversation", "Each turn is one transaction: it commits whole, or not at all.")
        main.run("What is the capital of France?")
        main.run("What is the capital of Germany?")

        self._chapter("A turn that fails", "This question is longer than all that the model can read at once.")
        with self._nothing_moves(), suppress(TurnFailed):  # it is on the screen, and is kept beside history
            main.run(TOO_LONG)

        self._chapter(
            "An answer that is cut off", f"After {PIECES} words the listener is gone, as when a connection breaks."
        )
        with self._nothing_moves():
            cut = self._cut_off("What is Paris famous for?")
        if cut.outcome == "cancelled":
            self._say("retry() asks the same again, from the last good state:")
            main.retry()

        began = time.perf_counter()
        fork = self._fork = main.fork(title="Paris", cache="inherit")
        took = figures.seconds(time.perf_counter() - began)
        count = figures.counted(main.info().events, "event")
        self._chapter("A fork", f"Made in {took}: it shares all {count}, copies none, and keeps the key of the cache.")
        asked = fork.run("What language do people speak in Paris?")
        cached = f"{asked.usage.cached:,} of {asked.usage.input:,} tokens"
        self._say(f"Its first prompt was in the cache already: {cached}. The source goes on by itself:")
        self._out.print()
        main.run("What is the capital of Italy?")

        self._chapter("The family", "What each branch has used by itself; failed tries are counted too.")
        self._out.print(draw(main.tree()))
        self._out.print()
        if not self._out.quiet:
            display(self._figures())
        self._out.print()
        self._verified = [main.verify(), fork.verify()]
        flaws = [flaw for found in self._verified for flaw in found.flaws]
        checked = figures.counted(sum(found.events for found in self._verified), "event")
        said = "; ".join(f"{flaw.where}: {flaw.what}" for flaw in flaws) or "all are as they were written"
        self._say(f"verify: {checked} along both paths, {said}.")

    @property
    def kept_its_promises(self) -> bool:
        """Whether what failed left nothing, and history is as it was written."""
        return all(self._unchanged) and all(found.ok for found in self._verified)

    def farewell(self, store: str | None) -> None:
        """How to go on."""
        self._out.print()
        if store is None:
            self._say("This store is thrown away now. To keep one: forkpoint demo --store sqlite:///demo.db")
        else:
            self._say(f"Look at it:  {command('show', self._main.id, store)}")
            self._say(f"Go on there: {command('chat', self._main.id, store)}")

    def document(self) -> dict[str, Any]:
        """All of it, for programs."""
        branches = []
        for one in self._branches:
            turns = _own_turns(one)
            branches.append(
                plain(info_document(one.info()))
                | {"stats": stats_document(one.stats()), "seconds": _seconds(turns)}
                | {"turns": [document(turn, one.name) for turn in turns]}
            )
        flaws = [{"where": flaw.where, "what": flaw.what} for found in self._verified for flaw in found.flaws]
        return {"model": MODEL, "unchanged": all(self._unchanged), "flaws": flaws, "branches": branches}

    def close(self) -> None:
        for one in self._branches:
            one.close()

    @property
    def _branches(self) -> list[Conversation]:
        return [self._main] if self._fork is None else [self._main, self._fork]

    def _cut_off(self, question: str) -> Turn:
        """A turn whose listener leaves in the middle of the answer. A model that is very fast may have committed it."""
        id, heard = "", 0
        with self._main.run_stream(question) as stream:
            for update in stream:
                match update:
                    case TurnStarted():
                        id = update.id
                    case TextPiece():
                        heard += 1
                if heard == PIECES:
                    break
        return self._main.turn(id)

    @contextmanager
    def _nothing_moves(self) -> Iterator[None]:
        """Looks at the history before and after."""
        before = self._main.info()
        yield
        after = self._main.info()
        same = (before.events, before.digest) == (after.events, after.digest)
        self._unchanged.append(same)
        told = f"{figures.counted(before.events, 'event')} before, {after.events:,} after"
        self._say(f"History: {told}; its digest is {'the same' if same else 'another'}.")
        self._out.print()

    def _figures(self) -> Table:
        table = grid(header=True)
        table.add_column("branch")
        for name in ("turns", "events", "tokens in", "cached", "out", "time"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in self._branches:
            info, used, own = one.info(), one.stats().spent, _own_turns(one)
            committed = sum(turn.outcome == "committed" for turn in own)
            own_events = info.events - info.inherited_events
            events = number(info.events) if one is self._main else Cell(f"{own_events:,} own", str(own_events))
            table.add_row(
                info.title or info.name,
                number(committed),
                events,
                number(used.input),
                figures.share(used),
                number(used.output),
                figures.seconds(_seconds(own)),
            )
        return table

    def _chapter(self, title: str, about: str) -> None:
        self._out.print(title, style="bold green")
        self._say(about)
        self._out.print()

    def _say(self, text: str) -> None:
        self._out.print(text, style="dim")


def _own_turns(conversation: Conversation) -> list[Turn]:
    """The turns that a conversation ran itself, with those that did not commit."""
    return [turn for turn in all_turns(conversation) if turn.conversation == conversation.id]


def _seconds(turns: list[Turn]) -> float:
    """How long turns took."""
    return sum((turn.ended - turn.started) / 1e6 for turn in turns if turn.ended is not None)


@contextmanager
def _model_loaded(*, quiet: bool) -> Iterator[None]:
    """Loads the model first, so that turns take as long as they take. Raises what `Engine.load` raises."""

    class Reader:
        """Somebody who needs the model."""

    reader = Reader()
    path = check_ready(MODEL.partition("/")[2])
    engine = engine_for(path, reader, model=MODEL, progress=(lambda _: None) if quiet else tell)
    try:
        wait_for("demo", engine.load)
        yield
    finally:
        wait_for("demo", leave, reader)
