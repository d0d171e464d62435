"""The turn that is struck: two steps with three tools, of which two run at once, and then an answer.

The model answers by what it is shown and by nothing else, so it says the same however often it is asked. Tools write
down what they do in a log outside the store, as it happens: that is the world, against which a turn's own account is
held. What the model was asked, and what it was paid for, goes to the same log, so that a killed process leaves it too.
"""

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Struct

from forkpoint import LLM, Agent, Limits, ToolContext, tool
from forkpoint.backend.callbacks import Update
from forkpoint.events import Usage
from forkpoint.llm.model import Retries
from forkpoint.testing import Fault, Heard, ModelServer, Reply, Script, ScriptedCall
from forkpoint.updates import Answered, CallStarted

FIRST, STRUCK, NEXT = "Hello.", "What does it cost to post the parcel?", "And tomorrow?"
STEERED = "It is a present."
"""What somebody sends to the turn while its first tool runs, in the act ``steer``."""

ANSWER = "It costs 5.90."
CALLS = "call_weigh", "call_measure", "call_post"
PAID = Usage(calls=1, input=100, output=10)
MODEL = "the-fault-matrix"
SECONDS = 1000
"""How long the turn may take."""

What = Literal["asked", "answered", "called", "starts", "ends", "steered"]


class Entry(Struct, frozen=True, omit_defaults=True):
    """One line of the log."""

    phase: str
    what: What
    call: str = ""  # or, of a message that was steered, what its sender heard
    body: msgspec.Raw = msgspec.Raw(b"null")  # what the model was asked


class Log:
    """What happened outside the store. Each line is one write, so a killed process leaves whole lines."""

    def __init__(self, path: Path, phase: str = "first") -> None:
        self.phase = phase
        self._path = path
        self._file = path.open("ab", buffering=0)

    def write(self, what: What, call: str = "", body: bytes = b"null") -> None:
        self._file.write(msgspec.json.encode(Entry(self.phase, what, call, msgspec.Raw(body))) + b"\n")

    def read(self) -> list[Entry]:
        return [msgspec.json.decode(line, type=Entry) for line in self._path.read_bytes().splitlines()]

    def close(self) -> None:
        self._file.close()

    def told(self, update: Update) -> None:
        """A conversation's callback: what a provider has reported as used, and which tools are about to start."""
        match update:
            case Answered(called=called) if called.usage:
                self.write("answered")
            case CallStarted(call=call):
                self.write("called", call.call_id)
            case _:
                pass

    async def quiet(self) -> None:
        """Waits a little for a thread that was left behind: what it does belongs to the phase that is over."""
        thread = CALLS[1]
        with anyio.move_on_after(0.25):
            while True:
                did = [entry.what for entry in self.read() if entry.call == thread]
                if did.count("called") <= did.count("ends"):
                    return
                await anyio.sleep(0.005)


def requests(entries: Iterable[Entry], phase: str) -> list[bytes]:
    """What the model was asked in a phase."""
    return [bytes(entry.body) for entry in entries if entry.what == "asked" and entry.phase == phase]


def answer_to(body: Any, words: str, *, fails: bool = False) -> Reply:
    """What the model says to a request. With ``fails`` it is overloaded after the first two tools."""
    if words not in (STRUCK, STEERED):
        return Reply(f"You said: {words}", usage=PAID)
    messages: list[Any] = body["messages"]
    last = max(place for place, message in enumerate(messages) if message["content"] == STRUCK)
    match sum(message["role"] == "tool" for message in messages[last:]):
        case 0:
            weigh = ScriptedCall("weigh", '{"what": "parcel"}', CALLS[0])
            measure = ScriptedCall("measure", '{"what":"parcel"}', CALLS[1])
            return Reply("I weigh and measure it.", calls=(weigh, measure), usage=PAID)
        case 2:
            fault = Fault("overloaded") if fails else None
            return Reply(calls=(ScriptedCall("post", '{"kilos": 2}', CALLS[2]),), usage=PAID, fault=fault)
        case _:
            return Reply(ANSWER, usage=PAID)


class Listener:
    """The model as a server: over real HTTP, so that what it is asked can be kept byte for byte."""

    def __init__(self) -> None:
        self.log: Log | None = None  # of the run that is under way
        self.fails = False
        self.server = ModelServer(Script(self._reply))

    def _reply(self, heard: Heard) -> Reply:
        assert self.log is not None
        with suppress(ValueError):  # it is closed: the client has given up on this request, and so the run is over
            self.log.write("asked", body=self.server.last.body)
        return answer_to(heard.body, heard.text, fails=self.fails)


def llm_for(log: Log, listener: "Listener | str | None", *, fails: bool = False) -> LLM:
    """The model: a server, here or (by its address) in the process that started this one; or scripted in this one."""
    once = Retries(attempts=1)
    if isinstance(listener, Listener):
        listener.log, listener.fails = log, fails
        listener = listener.server.url
    if listener is not None:
        return LLM(f"openai/{MODEL}", base_url=listener, retries=once)

    def reply(heard: Heard) -> Reply:
        log.write("asked", body=msgspec.json.encode(heard.body))
        return answer_to(heard.body, heard.text, fails=fails)

    return LLM(Script(reply).register(MODEL), retries=once)


def agent_for(log: Log, llm: LLM, *, asks: bool = False, steer: Callable[[], Awaitable[None]] | None = None) -> Agent:
    """The agent, whose tools work on this log's world. Of the first two, one is a coroutine and one has a thread.

    With ``asks`` the third one waits for an approval. ``steer`` is what happens to the turn while the first one runs.
    """

    @tool
    async def weigh(ctx: ToolContext, what: str) -> str:
        """Weighs something."""
        log.write("starts", ctx.call_id)
        await anyio.lowlevel.checkpoint()
        ctx.state["weight"] = 2
        await (anyio.lowlevel.checkpoint() if steer is None else steer())
        log.write("ends", ctx.call_id)
        return f"The {what} weighs 2 kg."

    @tool
    def measure(ctx: ToolContext, what: str) -> str:
        """Measures something."""
        log.write("starts", ctx.call_id)
        log.write("ends", ctx.call_id)
        return f"The {what} is 30 cm long."

    @tool(risky=True)
    async def post(ctx: ToolContext, kilos: int) -> str:
        """Posts the parcel."""
        log.write("starts", ctx.call_id)
        await anyio.lowlevel.checkpoint()
        log.write("ends", ctx.call_id)
        return f"{kilos} kg are posted."

    return Agent(
        llm,
        instructions="You work at a post office.",
        tools=[weigh, measure, post],
        limits=Limits(seconds=SECONDS),
        approval="risky" if asks else "never",
    )
