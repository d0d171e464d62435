"""The turn that is killed: it gives two tasks to forked sub-agents in one response, waits for both, and answers.

Each sub-agent looks twice, with a tool that must not run again for the same call, and answers. The model says the same
to the same prompt, however often it is asked. What it was asked, and what the tools did, goes to a log outside the
store.
"""

from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec
from tests.conversation.faults.scenario import Log
from tests.conversation.support.families import since_asked

from forkpoint import Agent, AsyncConversation, ToolContext, tool
from forkpoint.events import Usage
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing import Heard, Reply, Script, ScriptedCall

FIRST, GO, NEXT = "Hello.", "What is on the shore and on the hill?", "And tomorrow?"
TASKS = {"call_shore": "the shore", "call_hill": "the hill"}
PAID = Usage(calls=1, input=100, output=10)
LOOKS = "near", "far"
ASKED = 3 + (len(LOOKS) + 1) * len(TASKS)
"""How often models are asked for the turn, if nothing goes wrong."""

Stage: TypeAlias = Literal["begin", "spawn", "wait", "finish"]
"""How far the parent's turn is: its model is asked first, and spawns, and waits, and says what it heard."""

STAGES: tuple[Stage, ...] = get_args(Stage)


class World:
    """The model, the tools and the log of one run."""

    def __init__(self, folder: Path, phase: str) -> None:
        self.file = file_in(folder)
        self.log = Log(folder / "log", phase)
        self.stage: Stage = "begin"

    @property
    def agent(self) -> Agent:
        log = self.log

        @tool
        async def look(ctx: ToolContext, at: str) -> str:
            """Looks at something."""
            log.write("starts", at)
            return f"{at} is there"

        model = Script(self._reply).register("the-killed-team")
        return Agent(model, instructions="You explore.", tools=[look], sub_agents=True)

    async def open(self, store: SqliteStore, id: str) -> AsyncConversation:
        return await AsyncConversation.open(id, agent=self.agent, store=store)

    def _reply(self, heard: Heard) -> Reply:
        task, results = since_asked(heard.body)
        self.log.write("asked", task, msgspec.json.encode(heard.body))
        if task == GO:
            self.stage = "spawn" if not results else "wait" if len(results) == len(TASKS) else "finish"
        return msgspec.structs.replace(_said(task, results), usage=PAID)


def _said(task: str, results: list[str]) -> Reply:
    if task == GO:
        match len(results):
            case 0:
                return Reply("Two others shall look.", calls=tuple(_spawns(*one) for one in TASKS.items()))
            case 2:
                return Reply(calls=(ScriptedCall("wait_agent", "{}", "call_wait"),))
            case _:
                return Reply(f"They told me: {results[-1]}")
    if task in TASKS.values():
        if len(results) < len(LOOKS):
            where = LOOKS[len(results)]
            return Reply(calls=(ScriptedCall("look", f'{{"at": "{task}, {where}"}}', f"call_{where}"),))
        return Reply(f"I saw {task}.")
    return Reply(f"You said: {task}")


def _spawns(call: str, task: str) -> ScriptedCall:
    return ScriptedCall("spawn_agent", f'{{"task": "{task}", "fork": "all"}}', call)


def file_in(folder: Path) -> Path:
    return folder / "store" / "store.db"


async def make_start(folder: Path) -> str:
    """A conversation with one turn, in which the next is to be killed. Gives its id."""
    (folder / "store").mkdir(parents=True)
    world = World(folder, "start")
    async with await SqliteStore.open(world.file) as store, AsyncConversation(world.agent, store=store) as parent:
        await parent.run(FIRST)
    world.log.close()
    return parent.id
