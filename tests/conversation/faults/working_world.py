"""The turn that is struck: it has hooks, skills, a call of an MCP server, a secret, and a condensation behind it.

The model looks at something with a tool of ours and sends something with one of the server's, at once, and answers. A
hook objects to that, and so it answers again. Hooks run at its start, before the server's tool, after each tool and
before its end; one skill is called for by what the user said, one by the file that was looked at. When it has
committed, the path is condensed. What the model, the tools, the hooks and the server did goes to a log outside of the
store, as it happens.
"""

import os
import sys
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import anyio.lowlevel
import msgspec

from forkpoint.agent import Agent, ToolContext, tool
from forkpoint.agent.condense.condenser import Condenser
from forkpoint.agent.hooks.hook import Block, Hook, HookContext
from forkpoint.agent.mcp import McpServer
from forkpoint.agent.secrets.secret import Secret
from forkpoint.agent.skills.skill import Skill
from forkpoint.backend.callbacks import Callback, Update
from forkpoint.events import Text, Usage
from forkpoint.llm import LLM, Retries
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall
from forkpoint.updates import Answered

HELLO, GO, NEXT = "Hello there.", "Send the parcel, please.", "And what about tomorrow?"
TURNS = 3  # of small talk, before the turn that is struck
FIRST, ANSWER, NOTES = "It is sent.", "It is sent, and signed.", "They talked about this and that."
CALLS = "call_look", "call_send"
PAID = Usage(calls=1, input=100, output=10)
KEY = "k3y-0f-the-p0st-0ffice-9d1f"  # which only tools, hooks and the server may see, though all of them tell it
LIMIT = 22  # events: more than the small talk has, and fewer than it has with the turn

Stage: TypeAlias = Literal["begin", "tools", "end", "condensing"]
"""How far it is: before the model asks for tools, until it answers, until it has committed, and afterwards."""

STAGES: tuple[Stage, ...] = get_args(Stage)

SERVER = Path(__file__).with_name("post_server.py")
GUARD = r"""echo "hook guard call_send" >> "$POST_LOG"; echo "{\"context\": \"The office is open for $POST_KEY.\"}" """


class World:
    """The agent of one run, and the log. What was started before it was made writes where it did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "store.db"
        self.paid = Usage()  # as its answers told; not for summaries
        self.asked: list[tuple[str, bytes]] = []  # for which words, and what
        self.stage: Stage = "begin"
        self.is_silent = False  # nobody writes summaries
        self.leaks: list[str] = []
        self._log = (folder / "log").open("ab", buffering=0)
        os.environ["POST_LOG"] = str(folder / "log")
        os.environ["POST_KEY"] = KEY
        self.agent = self._make()

    def close(self) -> None:
        self._log.close()

    def write(self, line: str) -> None:
        if not self._log.closed:  # a thread that was left behind may be late
            self._log.write(line.encode() + b"\n")

    def lines(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def told(self, update: Update) -> None:
        """The callback of all that is run."""
        if isinstance(update, Answered):
            self.paid += update.called.usage
            self.write("answered" if update.called.usage else "unanswered")
        if KEY in repr(update):
            self.leaks.append(repr(update))

    def beside(self, _: str) -> Callback:
        return self.told

    def _make(self) -> Agent:
        @tool(secrets=["POST_KEY"])
        async def look(ctx: ToolContext, path: str) -> str:
            """Looks at a file."""
            self.write("starts call_look")
            key = ctx.secrets["POST_KEY"]
            ctx.progress(f"with {key}")
            ctx.state["looked"] = f"{path} with {key}"
            await anyio.lowlevel.checkpoint()
            self.write("ends call_look")
            return f"There is {path}, for {key}."

        async def begin(context: HookContext) -> None:
            self.write("hook begin -")
            await anyio.lowlevel.checkpoint()

        def stamp(context: HookContext) -> str | None:
            self.write(f"hook stamp {context.call_id}")
            assert context.result is not None
            words = "".join(part.text for part in context.result.parts if isinstance(part, Text))
            # Of one call alone: what hooks say of calls that run at once stands in the order in which those ended.
            return f"Stamped: {words}" if context.call_id == CALLS[1] else None

        async def sign(context: HookContext) -> Block | None:
            self.write("hook sign -")
            await anyio.lowlevel.checkpoint()
            return Block("it is not signed") if context.answer == FIRST else None

        once = Retries(attempts=1)
        return Agent(
            LLM(Script(self._reply).register("the-working-turn"), retries=once),
            instructions="You are a clerk.",
            tools=[look],
            mcp=[
                McpServer(
                    "post",
                    command=[sys.executable, "-I", "-S", str(SERVER)],
                    env={"POST_LOG": "${POST_LOG}", "POST_KEY": "${POST_KEY}"},
                )
            ],
            secrets={"POST_KEY": Secret(env="POST_KEY")},
            hooks=[
                Hook("turn_start", function=begin, name="begin"),
                Hook("before_tool", command=GUARD, tools="post__*", name="guard"),
                Hook("after_tool", function=stamp, name="stamp"),
                Hook("turn_end", function=sign, name="sign"),
            ],
            skills=[
                Skill("parcels", "Parcels are signed.", words=("parcel",)),
                Skill("labels", "Labels are white.", files=("*.label",)),
            ],
            condenser=Condenser(
                events=LIMIT, llm=LLM(Script(self._summary).register("the-working-notes"), retries=once)
            ),
        )

    def _reply(self, heard: Heard) -> Reply:
        texts = [msgspec.json.encode(message).decode() for message in heard.body["messages"]]
        words, last = _last(texts)
        self.asked.append((words, msgspec.json.encode(heard.body)))
        self.write("asked")
        since = texts[last + 1 :]
        if words != GO:
            return Reply(f"You said: {words}", usage=PAID)
        if not any('"role":"tool"' in text for text in since):
            self.stage = "tools"
            look = ScriptedCall("look", '{"path":"a.label"}', CALLS[0])
            return Reply("I do.", calls=(look, ScriptedCall("post__send", '{"to":"you"}', CALLS[1])), usage=PAID)
        self.stage = "end"
        return Reply(ANSWER if any("it is not signed" in text for text in since) else FIRST, usage=PAID)

    def _summary(self, heard: Heard) -> Reply:
        self.stage = "condensing"
        if self.is_silent:
            return Reply(fault=Fault("overloaded"))
        self.write("summary")
        return Reply(NOTES, usage=PAID)


def _last(texts: list[str]) -> tuple[str, int]:
    """What the user said last, and where it stands."""
    found: list[tuple[int, str]] = []
    for words in (HELLO, GO, NEXT):
        found += [(place, words) for place, text in enumerate(texts) if words in text and '"role":"user"' in text]
    place, words = max(found)
    return words, place
