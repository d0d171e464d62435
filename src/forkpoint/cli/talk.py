"""`Talk`: the conversation in which ``run`` and ``chat`` say something, as their options name it.
Tests: tests/cli/test_run.py, tests/cli/test_chat.py, tests/cli/test_coder.py."""

from typing import Any

import typer
from msgspec import Struct

from forkpoint.agent.output import as_output
from forkpoint.backend.allowance import allows_models
from forkpoint.backend.settings import as_workspace
from forkpoint.cli.answerer.answerer import Answerer, described
from forkpoint.cli.common import BUILT_IN, allowed, is_built_in, opened
from forkpoint.cli.output import one_line
from forkpoint.cli.questions.project import ModelsHere
from forkpoint.conversation import Conversation
from forkpoint.conversation.look import is_remote
from forkpoint.errors import NotFound
from forkpoint.llm.model import LLM


class Talk(Struct, frozen=True):
    """What the options say: which conversation it is, and who answers there."""

    name: str | None
    who: Answerer
    approval: str | None
    workspace: str | None
    trust: bool | None
    allow: list[str] | None
    store: str | None
    schema: dict[str, Any] | None = None

    def existing(self, **options: Any) -> Conversation | None:
        """The conversation with this name, ready to run, or None.

        Refuses an option that would have no effect on it.
        """
        if not self.name:
            return None
        try:
            other = self._other_model(self.name)
            allow = self.allow if other is None else [*(self.allow or ()), "model"]
            options |= {"agent": self.who.agent, "llm": other, "allow": allow, "trust": self.trust}
            found = opened(self.name, self.store, bind=True, **options)
        except NotFound:
            return None
        try:
            if self.approval is not None and (found.agent is None or found.agent.approval != self.approval):
                raise _refused(found, "--approval", "has its agent's already; only a new one takes another")
            if self.schema is not None and not _answers_so(found, self.schema):
                raise _refused(
                    found, "--schema", "has its agent's form of answers already; only a new one takes another"
                )
            if is_remote(self.store):
                self._check_options_there(found, other)
            else:
                self._check_options(found)
        except BaseException:
            found.close()
            raise
        return found

    def new(self, **options: Any) -> Conversation:
        """A new conversation, with the name if there is one. It comes into being with its first turn."""
        workspace = here_for(self.who.agent, self.workspace, None, self.store)
        who = self.who.at(self.store, ModelsHere(workspace, self.store, self.trust))
        for option, other in (("--approval", {"approval": self.approval}), ("--schema", {"output": self.schema})):
            if None in other.values():
                continue
            if isinstance(who, str):
                why = f"the agent {who} is the server's, and has its own"
                raise typer.BadParameter(why, param_hint=option)
            who = who.replace(**other)
        place: dict[str, Any] = {"workspace": workspace, "trust": self.trust, "store": self.store}
        return Conversation(who, conversation_id=self.name, **place, **options)

    def _other_model(self, name: str) -> LLM | None:
        """The model that the conversation is to go on with, if it may have another than it has; else None.

        It may if ``--allow`` says so, or if nothing was ever answered there: then no model is to be kept.
        """
        if not self.who.model or self.who.agent is not None:
            return None
        may = bool(self.allow) and allows_models(allowed(self.allow or ()))
        with opened(name, self.store, bind=True, allow=self.allow) as found:
            return self.who.model.instead_of(found, self.store) if may or found.info().events == 0 else None

    @property
    def _here(self) -> ModelsHere:
        """The models that have names where the conversation works."""
        return ModelsHere(self.workspace, self.store, self.trust)

    def _check_options_there(self, found: Conversation, other: LLM | None) -> None:
        """Refuses what a conversation at a server has otherwise. Of its agent only the name and the model are known."""
        info = found.info()
        model = other.model if other is not None else info.model
        has = {"--agent": info.agent, "--model": model, "--instructions": None, "--workspace": info.workspace}
        given = {"--agent": self.who.agent, "--model": self.who.model.model}
        given |= {"--instructions": self.who.instructions, "--workspace": self.workspace}
        given |= {"--base-url": self.who.model.base_url, "--api": self.who.model.api}
        given |= {"--api-key-env": self.who.model.api_key_env}
        for name, value in given.items():
            if value is not None and value != has.get(name):
                raise _refused(found, name, f"is answered by {info.agent or info.model} of the server already")

    def _check_options(self, found: Conversation) -> None:
        """Refuses what a conversation of this machine has otherwise. If nobody answers there yet, the agent does."""
        agent, instructions, workspace = self.who.agent, self.who.instructions, self.workspace
        if found.agent is None:
            found.change_agent(self.who.made(self._here))
            return
        self.who.check()
        if agent in BUILT_IN and found.agent.name != agent:
            raise _refused(found, "--agent", "is answered by another agent already")
        if (option := self.who.model.differing(found.agent.llm, self._here)) is not None:
            raise _refused(found, option, f"is answered by {described(found.agent.llm)} already")
        with_project = "\n\n".join(filter(None, (instructions, found.project_instructions)))
        if instructions is not None and found.agent.instructions not in (instructions, with_project):
            raise _refused(found, "--instructions", "has others already")
        if workspace is not None and as_workspace(workspace) != (str(found.workspace) if found.workspace else None):
            raise _refused(found, "--workspace", f"works in {found.workspace or 'no folder'} already")


def here_for(agent: str | None, workspace: str | None, conversation: str | None, store: str | None) -> str | None:
    """The workspace of a new conversation. A built-in agent works in the folder that the program was started in."""
    return "." if workspace is None and conversation is None and is_built_in(agent, store) else workspace


def _answers_so(found: Conversation, schema: dict[str, Any]) -> bool:
    """Whether the agent of a conversation gives answers of this form."""
    has = None if found.agent is None else found.agent.output
    return has is not None and has == as_output(schema)


def _refused(found: Conversation, option: str, why: str) -> typer.BadParameter:
    return typer.BadParameter(f"conversation {one_line(found.name)} {why}", param_hint=option)
