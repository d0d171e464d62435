"""``forkpoint run``: one turn, in a new or an existing conversation."""

import sys
from typing import Annotated

import typer

from forkpoint.cli.answerer import Answerer, Api, ApiKeyEnv, BaseUrl, ModelOptions
from forkpoint.cli.common import AgentPath, Allow, Approval, Instructions, Model, Store
from forkpoint.cli.options import argument, option
from forkpoint.cli.outcome import Telling
from forkpoint.cli.output import Json
from forkpoint.cli.questions.project import TrustGiven, Workspace, place_of
from forkpoint.cli.talk import Talk, here_for


def run(
    message: Annotated[
        str | None, argument("MESSAGE", "What to say. - reads it from stdin; so does a pipe, without a message.")
    ] = None,
    conversation: Annotated[
        str | None,
        option(
            "--conversation -c NAME",
            "Say it in this conversation: its name, its id, or the start of its id. A new name makes a new one.",
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
    key: Annotated[
        str | None, option("--key TEXT", "Do it once: the same key and message return the same turn again.")
    ] = None,
    quiet: Annotated[bool, option("--quiet -q", "Print the answer alone.")] = False,
    store: Store = None,
    json: Json = False,
) -> None:
    """Run one turn: say something, and get an answer that is committed.

    The answer is on stdout, all the rest on stderr. On a terminal it is shown as it comes; a file or a pipe gets it
    once it is committed, whole. A turn that fails or is cancelled leaves the conversation as it was.

    Without --conversation it begins a new one. An existing conversation keeps its agent: --agent gives it tools that
    cannot be imported here, and --model another model if you --allow model.

    --agent coder works in the folder that you are in, or in --workspace, and asks before it runs a command or writes a
    file. Where nobody can be asked, say --approval never.

    \b
    Examples:
      forkpoint run "What is the capital of France?"
      forkpoint run -c build-1234 "And why did it fail?"
      git diff | forkpoint run --instructions "You review changes." --quiet
      forkpoint run --agent coder --model openai/gpt-5.6 "Why does test_login fail?"
      forkpoint run --agent myproject.agents:reviewer --workspace . "Have a look." --json

    \b
    Exit status: 0 it has committed; 1 it has failed; 3 it waits for an approval; 130 Ctrl-C.
    """
    if allow and conversation is None:
        why = "a new conversation misses nothing; name one with --conversation"
        raise typer.BadParameter(why, param_hint="--allow")
    said = _message(message)
    workspace = here_for(agent, workspace, conversation, store)
    store = place_of(workspace, store, trust)
    telling = Telling(store=store, as_json=json, quiet=quiet)
    who = Answerer(ModelOptions(model, base_url, api, api_key_env), instructions, agent)
    talk = Talk(conversation, who, approval, workspace, trust, allow, store)
    with talk.existing(**telling.options) or talk.new(**telling.options) as this:
        telling.run(this, lambda: this.run(said, key=key))


def _message(given: str | None) -> str:
    """The message: from the command line, or from stdin."""
    if given == "-" or (given is None and not sys.stdin.isatty()):
        given = sys.stdin.buffer.read().decode(errors="surrogateescape").rstrip("\r\n")
    if not given or given.isspace():
        raise typer.BadParameter("there is nothing to say: give a message, or - to read it from stdin")
    return given
