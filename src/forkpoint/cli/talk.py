"""`Talk`: the conversation in which ``run`` and ``chat`` say something, as their options name it.
Tests: tests/cli/test_run.py, tests/cli/test_chat.py, tests/cli/test_coder.py."""

from typing import Any

import typer
from msgspec import Struct

from forkpoint.backend.allowance import allows_models
from forkpoint.backend.settings import as_workspace
from forkpoint.cli.common import BUILT_IN, agent_from, allowed, answerer_from, is_built_in, opened
from forkpoint.cli.output import one_line
from forkpoint.cli.questions.project import model_of
from forkpoint.conversation import Conversation
from forkpoint.conversation.look import is_remote
from forkpoint.errors import NotFound


class Talk(Struct, frozen=True):
    """What the options say: which conversation it is, and who answers there. In the order of the commands' options."""

    name: str | None
    model: str | None
    instructions: str | None
    agent: str | None
    approval: str | None
    workspace: str | None
    trust: bool | None
    allow: list[str] | None
    store: str | None

    def existing(self, **options: Any) -> Conversation | None:
        """The conversation with this name, ready to run, or None.

        Refuses an option that would have no effect on it.
        """
        if not self.name:
            return None
        try:
            other = self.model if self.agent is None and self._changes_model(self.name) else None
            options |= {"agent": self.agent, "model": other, "allow": self.allow, "trust": self.trust}
            found = opened(self.name, self.store, bind=True, **options)
        except NotFound:
            return None
        try:
            if self.approval is not None and (found.agent is None or found.agent.approval != self.approval):
                raise _refused(found, "--approval", "has its agent's already; only a new one takes another")
            model = None if other is not None else self.model  # from its next turn on, it has the other model
            if is_remote(self.store):
                self._check_options_there(found, model)
            else:
                self._check_options(found, model)
        except BaseException:
            found.close()
            raise
        return found

    def new(self, **options: Any) -> Conversation:
        """A new conversation, with the name if there is one. It comes into being with its first turn."""
        workspace = here_for(self.agent, self.workspace, None, self.store)
        model = self.model
        if model is None and (self.agent is None or is_built_in(self.agent, self.store)):
            model = model_of(workspace, self.store, self.trust)
        who = answerer_from(self.agent, model, self.instructions, self.store)
        if self.approval is not None:
            if isinstance(who, str):
                why = f"the agent {who} is the server's, and has its own"
                raise typer.BadParameter(why, param_hint="--approval")
            who = who.but(approval=self.approval)
        place: dict[str, Any] = {"workspace": workspace, "trust": self.trust, "store": self.store}
        return Conversation(who, conversation_id=self.name, **place, **options)

    def _changes_model(self, name: str) -> bool:
        """Whether the conversation is to go on with another model, and ``--allow`` permits it."""
        if self.model is None or not self.allow or not allows_models(allowed(self.allow)):
            return False
        with opened(name, self.store) as found:
            return found.info().model not in {None, self.model}

    def _check_options_there(self, found: Conversation, model: str | None) -> None:
        """Refuses what a conversation at a server has otherwise. Of its agent only the name and the model are known."""
        info = found.info()
        has = {"--agent": info.agent, "--model": info.model, "--instructions": None, "--workspace": info.workspace}
        given = {"--agent": self.agent, "--model": model}
        given |= {"--instructions": self.instructions, "--workspace": self.workspace}
        for name, value in given.items():
            if value is not None and value != has[name]:
                raise _refused(found, name, f"is answered by {info.agent or info.model} of the server already")

    def _check_options(self, found: Conversation, model: str | None) -> None:
        """Refuses what a conversation of this machine has otherwise. If nobody answers there yet, the agent does."""
        agent, instructions, workspace = self.agent, self.instructions, self.workspace
        if found.agent is None:
            found.change_agent(agent_from(agent, model, instructions))
            return
        if agent is not None and (model is not None or instructions is not None):
            agent_from(agent, model, instructions)  # raises the reason
        if agent in BUILT_IN and found.agent.name != agent:
            raise _refused(found, "--agent", "is answered by another agent already")
        if model is not None and model != found.agent.llm.model:
            raise _refused(found, "--model", f"is answered by {found.agent.llm.model} already")
        with_project = "\n\n".join(filter(None, (instructions, found.project_instructions)))
        if instructions is not None and found.agent.instructions not in (instructions, with_project):
            raise _refused(found, "--instructions", "has others already")
        if workspace is not None and as_workspace(workspace) != (str(found.workspace) if found.workspace else None):
            raise _refused(found, "--workspace", f"works in {found.workspace or 'no folder'} already")


def here_for(agent: str | None, workspace: str | None, conversation: str | None, store: str | None) -> str | None:
    """The workspace of a new conversation. A built-in agent works in the folder that the program was started in."""
    return "." if workspace is None and conversation is None and is_built_in(agent, store) else workspace


def _refused(found: Conversation, option: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(f"conversation {one_line(found.name)} {why}", param_hint=option)
