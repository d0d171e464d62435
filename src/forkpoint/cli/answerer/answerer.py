"""`Answerer`: who answers, as the options of a command name it: a model and instructions, or an agent.
Tests: tests/cli/test_model_options.py, tests/cli/test_run.py, tests/cli/test_tree.py."""

from typing import Annotated, Any, Literal, TypeAlias

import typer
from msgspec import Struct

from forkpoint.agent.agent import Agent
from forkpoint.cli.answerer.bundled import agent_of
from forkpoint.cli.common import BUILT_IN, imported, imported_agent
from forkpoint.cli.options import option
from forkpoint.cli.questions.project import ModelsHere
from forkpoint.conversation import Conversation
from forkpoint.conversation.look import default_agent, is_remote
from forkpoint.errors import BadAgent, BadModel
from forkpoint.llm.catalog import KEYS
from forkpoint.llm.model import LLM, full_name
from forkpoint.masking import masked

BaseUrl: TypeAlias = Annotated[
    str | None,
    option("--base-url URL", "The server that has the model, such as http://localhost:11434/v1. Needs --model."),
]

Api: TypeAlias = Annotated[
    Literal["chat", "responses", "messages"] | None,
    option("--api WIRE", "The API of the model: chat, responses or messages. Default with --base-url: chat."),
]

ApiKeyEnv: TypeAlias = Annotated[
    str | None,
    option("--api-key-env NAME", "The variable with the model's key. Default with --base-url: no key is sent."),
]

_HINTS = {"model": "--model", "base_url": "--base-url", "api": "--api", "api_key_env": "--api-key-env"}


class ModelOptions(Struct, frozen=True):
    """Which model is meant: its name, and where and how it is asked. In the order of the commands' options."""

    model: str | None = None
    base_url: str | None = None
    api: Literal["chat", "responses", "messages"] | None = None
    api_key_env: str | None = None

    @property
    def given(self) -> dict[str, str]:
        """The options that were given, by the names that an `LLM` has for them."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in fields.items() if value is not None}

    def __bool__(self) -> bool:
        return bool(self.given)

    def llm(self, here: ModelsHere = ModelsHere(), otherwise: LLM | None = None) -> LLM:
        """The model. If no option names one, it is ``otherwise``, and without that the default model of the place."""
        if self.model is not None:
            return here.model_from(self.given)
        llm = otherwise or here.default()
        if self and llm.kind not in KEYS:
            why = f"{llm.model} runs in this process; say with --model which model is meant"
            raise typer.BadParameter(why, param_hint=self.hint)
        return llm.replace(**self.given)

    def instead_of(self, conversation: Conversation, store: str | None) -> LLM | None:
        """The model that the options want for a conversation; None if they say nothing."""
        if not self:
            return None
        here = ModelsHere(None if conversation.workspace is None else str(conversation.workspace), store)
        model = conversation.info().model
        stored = None if model is None else LLM(model)
        return self.llm(here, stored if conversation.agent is None else conversation.agent.llm)

    @property
    def hint(self) -> str:
        """The first option that was given."""
        return _HINTS[next(iter(self.given))]

    def differing(self, llm: LLM, here: ModelsHere = ModelsHere()) -> str | None:
        """The first option that says something else than how this model is asked; None if all say the same."""
        has = {"model": llm.model, "base_url": llm.base_url, "api": llm.wire, "api_key_env": llm.key_variable}
        given = self.given
        if (named := self._named(here)) is not None:
            says: dict[str, Any] = {"model": named.model, "base_url": named.base_url, "api": named.wire} | given
            says["model"] = named.model
        else:
            says = given
        if self.model is not None and named is None:
            says["model"] = full_name(self.model, self.base_url or llm.base_url, self.api or llm.api)
        different = next((name for name, value in says.items() if value != has[name]), None)
        return None if different is None else _HINTS[different if different in given else "model"]

    def _named(self, here: ModelsHere) -> LLM | None:
        """The model that the settings name so; None if none is named, or if the name is not one of the settings."""
        if self.model is None or "/" in self.model or self.base_url is not None:
            return None
        try:
            return here.model_from({"model": self.model})
        except BadModel:
            return None


class Answerer(Struct, frozen=True):
    """Who answers: the model and the instructions of an agent without tools, or an agent."""

    model: ModelOptions = ModelOptions()
    instructions: str | None = None
    agent: str | None = None

    @property
    def is_given(self) -> bool:
        """Whether any option says who answers."""
        return bool(self.model) or self.instructions is not None or self.agent is not None

    @property
    def hint(self) -> str:
        """The first option that was given."""
        return self.model.hint if self.model else "--instructions" if self.instructions is not None else "--agent"

    def made(self, here: ModelsHere = ModelsHere(), otherwise: LLM | None = None) -> Agent:
        """The agent. ``otherwise`` is its model if no option names one; without it, the default model.

        Raises `BadAgent` if the agent cannot be found, or if the options contradict.
        """
        if self.agent is None:
            return agent_of(self.model.llm(here, otherwise), self.instructions)
        if self.agent in BUILT_IN and self.instructions is None:
            made: Agent = imported(BUILT_IN[self.agent])(self.model.llm(here, otherwise))
            return made
        self.check()
        return imported_agent(self.agent)

    def check(self) -> None:
        """Raises `BadAgent` if the options contradict: an agent that is given has its model and its instructions.

        A built-in agent has its instructions, and takes any model.
        """
        if self.agent in BUILT_IN and self.instructions is None:
            return
        self._check_alone("--instructions" if self.agent in BUILT_IN else self.hint)

    def _check_alone(self, hint: str) -> None:
        """Raises `BadAgent` if an agent is given with anything else. ``hint`` is the option that contradicts."""
        if self.agent is not None and (self.model or self.instructions is not None):
            raise BadAgent(f"--agent says who answers already, so {hint} cannot be given too")

    def at(self, store: str | None, here: ModelsHere = ModelsHere()) -> Agent | str:
        """The agent for a new conversation, which may live at a server.

        There a name without a colon is an agent of the server. Without any option, the server's default agent answers.
        """
        if not is_remote(store) or (self.agent is not None and ":" in self.agent):
            return self.made(here)
        if self.agent is not None:
            self._check_alone(self.hint)  # the server's agent has its model
            return self.agent
        if not self.is_given:
            return default_agent(store).name
        return self.made(here, LLM(default_agent(store).model))


def described(llm: LLM) -> str:
    """A model in words: what it is, where, over which wire, and which variable has its key."""
    where = f" at {masked(llm.base_url)}" if llm.base_url else ""
    key = f", with the key in {llm.api_key_env}" if llm.api_key_env else ""
    return f"{llm.model}{where} ({llm.wire}{key})"
