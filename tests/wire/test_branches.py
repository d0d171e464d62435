"""A difference and a report of what was brought can be read back from their documents without loss."""

import msgspec

from forkpoint import Agent, Conversation, tool
from forkpoint.testing import Reply, Script, ScriptedCall
from forkpoint.wire.branches import BroughtDocument, DiffDocument, brought_document, brought_of, diff_document, diff_of


@tool
def look(at: str) -> str:
    """Looks at something."""
    return f"{at} is full"


def test_documents_of_branches_come_back_as_they_were() -> None:
    replies = [Reply("hi")] + [Reply(calls=(ScriptedCall("look", '{"at":"it"}'),)), Reply("Full.")] * 2
    agent = Agent(Script(replies).register("wire-of-branches"), tools=[look])
    with Conversation(agent, store="memory:") as talk:
        talk.run("hello")
        with talk.fork(agent=agent.replace(instructions="Be brief.")) as fork:
            talk.run("look")
            fork.run("look there")
            fork.update_state({"x": [1]})
            diff, brought = talk.diff(fork), talk.bring(fork, "turns")
    sent = msgspec.json.encode(diff_document(diff))
    assert diff_of(msgspec.json.decode(sent, type=DiffDocument)) == diff
    sent = msgspec.json.encode(brought_document(brought))
    assert brought_of(msgspec.json.decode(sent, type=BroughtDocument)) == brought
