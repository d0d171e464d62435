"""``forkpoint chat``: a conversation on a terminal, with commands to fork it, go back and try again.

It reads from a pipe too, without prompts; with ``--json`` it answers each line with one JSON document on one line.
Tests: tests/cli/test_chat.py.
"""

from typing import Annotated

from forkpoint.cli.answerer import Answerer, Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.chat.dialogue import Dialogue
from forkpoint.cli.chat.screen import ChatScreen
from forkpoint.cli.chat.session import Session
from forkpoint.cli.common import AgentPath, Allow, Approval, Instructions, Model, Store
from forkpoint.cli.options import argument, option
from forkpoint.cli.output import clean, console
from forkpoint.cli.questions.project import TrustGiven, Workspace, ask_trust, place_of
from forkpoint.cli.talk import Talk, here_for
from forkpoint.cli.titles import TitleModel, Titles


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
    store: Store = None,
    json: Annotated[
        bool, option("--json", "Answer each line with one JSON document on one line, for programs.")
    ] = False,
) -> None:
    """Talk, and see answers as they come.

    Ctrl-C stops an answer, and nothing of that turn stays; Ctrl-D ends the program. /help shows what you can do: fork,
    go back, try again, ask aside. What you type during an answer is queued and is the next turn; /steer sends it to the
    turn that runs.

    \b
    Examples:
      forkpoint chat
      forkpoint chat build-1234
      forkpoint chat --agent coder
      printf 'What is the capital of France?\\n/fork\\nAnd of Spain?\\n' | forkpoint chat
    """
    workspace = here_for(agent, workspace, conversation, store)
    if trust is None and not json:
        trust = ask_trust(workspace, store, say=_say_aside)
    store = place_of(workspace, store, trust)
    who = Answerer(ModelOptions(model, base_url, api, api_key_env), instructions, agent)
    talk = Talk(conversation, who, approval, workspace, trust, allow, store)
    with Session(talk, ChatScreen(store, as_json=json), Titles.wanted(title_model, store)) as session:
        Dialogue(session).go()


def _say_aside(text: str) -> None:
    console().print(clean(text), style="dim")
