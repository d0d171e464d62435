"""A long turn, one tool in each step, that something strikes at its 31st.

    python -m tests.conversation.faults.long_turn FILE FOLDER

is a program that runs it, and is killed there.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec

from forkpoint import LLM, Agent, AsyncConversation, ToolContext, tool
from forkpoint.llm.model import Retries
from forkpoint.testing import Fault, Heard, Reply, Script, ScriptedCall

STEPS, AT = 40, 31
NAME = "the-long-turn"


class LongTurn:
    """The turn's agent; and what its tools and its model were asked, in files, so that a killed process leaves it."""

    def __init__(self, folder: Path) -> None:
        self._ran, self._asked = folder / "ran", folder / "asked"
        for file in (self._ran, self._asked):
            file.touch()
        self.strikes: Callable[[], None] | None = None  # called in the tool of the 31st step, when it has worked
        self.overloaded = False  # whether the model fails instead of asking for the 31st step

    @property
    def ran(self) -> list[int]:
        """The steps whose tool was run, each time that it was."""
        return [int(line) for line in self._ran.read_text().split()]

    @property
    def asked(self) -> list[bytes]:
        """What the model was asked."""
        return self._asked.read_bytes().splitlines()

    @property
    def agent(self) -> Agent:
        @tool
        async def work(ctx: ToolContext, step: int) -> str:
            """Does one step."""
            _append(self._ran, str(step).encode())
            if step == AT and self.strikes is not None:
                self.strikes()
                await anyio.sleep_forever()
            return f"Step {step} is done."

        llm = LLM(Script(self._reply).register(NAME), retries=Retries(attempts=1))
        return Agent(llm, tools=[work])

    def _reply(self, heard: Heard) -> Reply:
        _append(self._asked, msgspec.json.encode(heard.body))
        step = 1 + sum(message["role"] == "tool" for message in heard.body["messages"])
        if step > STEPS:
            return Reply("All is done.")
        fault = Fault("overloaded") if step == AT and self.overloaded else None
        return Reply(calls=(ScriptedCall("work", f'{{"step": {step}}}', f"call_{step}"),), fault=fault)


def _append(file: Path, line: bytes) -> None:
    with file.open("ab", buffering=0) as out:
        out.write(line + b"\n")


async def _die(file: Path, folder: Path) -> None:
    turn = LongTurn(folder)
    turn.strikes = lambda: os.kill(os.getpid(), signal.SIGKILL)
    conversation = AsyncConversation(turn.agent, conversation_id="long", store=file)
    await conversation.run("Do it all.")


if __name__ == "__main__":
    anyio.run(_die, Path(sys.argv[1]), Path(sys.argv[2]))
