"""Another process that uses the same store::

    python -m tests.conversation.support.other_process STORE ID VERB [ARGUMENTS]

VERB is a method of `Conversation`, and ARGUMENTS a JSON object with what it is called with: ``args`` and ``kwargs``. A
conversation that does not exist is made with the obedient agent, ``ID`` its name and ``workspace`` its folder. With
``ready`` it says so and waits for a line first. It ends by saying in one line of JSON what it heard.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conversation.support.tools import agent

from forkpoint import Conversation, ForkpointError
from forkpoint.errors import NotFound

ROOT = Path(__file__).parents[3]


def start(
    store: str, id: str, verb: str, *args: Any, workspace: Path | None = None, ready: bool = False, **kwargs: Any
) -> Any:
    """Starts one. Its standard input and output are pipes."""
    asked = {"args": args, "kwargs": kwargs, "workspace": str(workspace) if workspace else None, "ready": ready}
    command = [sys.executable, "-m", "tests.conversation.support.other_process", store, id, verb, json.dumps(asked)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def heard(process: Any, *, patience: float = 30) -> dict[str, Any]:
    """What it says at its end."""
    try:
        told, _ = process.communicate(timeout=patience)
    finally:
        process.kill()  # if it hangs
    assert process.returncode == 0
    answer: dict[str, Any] = json.loads(told.splitlines()[-1])
    return answer


def main(store: str, id: str, verb: str, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        conversation = Conversation.open(id, store=store)
    except NotFound:
        conversation = Conversation(agent(), conversation_id=id, store=store, workspace=asked["workspace"])
    with conversation:
        if asked["ready"]:
            print("ready", flush=True)
            sys.stdin.readline()
        try:
            if verb == "approve":
                conversation.open_turn()  # an approval is of what was shown
            turn = getattr(conversation, verb)(*asked["args"], **asked["kwargs"])
        except ForkpointError as error:
            return {"error": error.code, "message": str(error)}
        return {"turn": turn.id, "outcome": turn.outcome, "text": turn.text}


if __name__ == "__main__":
    _, address, name, act, document = sys.argv
    print(json.dumps(main(address, name, act, json.loads(document))), flush=True)
