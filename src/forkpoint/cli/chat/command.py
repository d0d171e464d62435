"""``forkpoint chat``: a conversation on a terminal, with commands to fork it, go back and try again.

It reads from a pipe too, without prompts; with ``--json`` it answers each line with one JSON document on one line.
Tests: tests/cli/test_chat.py.
"""

import sys
from typing import Annotated

from forkpoint.cli.answerer.answerer import Answerer, Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.chat.dialogue import Dialogue
from forkpoint.cli.chat.screen import ChatScreen
from forkpoint.cli.chat.session import Session
from forkpoint.cli.common import (
    AgentPath,
    Allow,
    Approval,
    Instructions,
    Last,
    Model,
    Store,
    last_used,
    listed,
    only_one,
)
from forkpoint.cli.input.attachments import Files, Images, attached
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import clean, console
from forkpoint.cli.questions.choice import choose
from forkpoint.cli.questions.project import TrustGiven, Workspace, ask_trust, place_of
from forkpoint.cli.recent import conversation_rows
from forkpoint.cli.talk import Talk, here_for
from forkpoint.cli.titles import TitleModel, Titles

_RECENT = 9  # conversations to pick from: one key each


def chat(
    conversation: Annotated[
        str | None,
        argument(
            "CONVERSATION",
            "Go on with this conversation: its name, its id, or the start of its id. A new name makes a new one.",
        ),
    ] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api: Api = None,
    api_key_env: ApiKeyEnv = None,
    instructions: Instructions = None,
    agent: AgentPath = None,
    approval: Approval = None,
    workspace: Workspace = None,
    trust: TrustGiven = None,
    allow: Allow = None,
    title_model: TitleModel = None,
    image: Images = None,
    file: Files = None,
    last: Last = False,
    plain: Annotated[bool, option("--plain", "Show answers as they are written, and not as Markdown.")] = False,
    store: Store = None,
    json: Annotated[
        bool, option("--json", "Answer each line with one JSON document on one line, for programs.")
    ] = False,
) -> None:
    """Talk, and see answers as they come.

    Ctrl-C stops an answer, and nothing of that turn stays; at the prompt it clears the line, and a second one leaves,
    as Ctrl-D does. /help shows what you can do: fork, go back, try again, ask aside. @FILE makes a file part of your
    message, and !COMMAND runs a command of yours, whose output goes with your next message. What you type during an
    answer is queued and is the next turn; /steer sends it to the turn that runs.

    Without a name, on a terminal, you pick one of the last conversations or begin a new one.

    \b
    Examples:
      forkpoint chat
      forkpoint chat build-1234
      forkpoint chat --last
      forkpoint chat --image plan.png
      forkpoint chat --agent coder
      printf 'What is the capital of France?\\n/fork\\nAnd of Spain?\\n' | forkpoint chat
    """
    only_one({"CONVERSATION": conversation, "--last": last})
    who = Answerer(ModelOptions(model, base_url, api, api_key_env), instructions, agent)
    if last:
        conversation = last_used(store)
    elif conversation is None and not json and not (who.is_given or workspace or approval):
        conversation = picked_conversation(store)
    workspace = here_for(agent, workspace, conversation, store)
    if trust is None and not json:
        trust = ask_trust(workspace, store, say=_say_aside)
    store = place_of(workspace, store, trust)
    talk = Talk(conversation, who, approval, workspace, trust, allow, store)
    screen = ChatScreen(as_json=json, plain=plain)
    with Session(talk, screen, Titles(title_model, store)) as session:
        Dialogue(session, attached(image, file)).go()


def picked_conversation(store: str | None) -> str | None:
    """The conversation that somebody at a terminal picks; None for a new one."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    infos = [
        info for info in listed(store, order="used", limit=_RECENT, glance=True).items if info.lineage.kind != "aside"
    ]
    if not infos:
        return None
    picked = choose(console(), "Which conversation?", ["a new one", *conversation_rows(infos)])
    return infos[picked - 1].id if picked else None


def _say_aside(text: str) -> None:
    console().print(clean(text), style="dim")
