"""A request: the exact bytes that a provider gets, and what is worth knowing about them.
Tests: tests/llm/test_call.py."""

from typing import Protocol

from msgspec import Struct

from forkpoint.events import Usage
from forkpoint.llm.answers import Answer
from forkpoint.llm.attempt import Hearing
from forkpoint.llm.model import LLM
from forkpoint.llm.options import Options
from forkpoint.llm.prompt.identity import CallContext
from forkpoint.llm.prompt.rendering import Rendering


class Request(Struct, frozen=True):
    """What is sent for one call. ``key`` is the prompt-cache key that stands in the body, if one does."""

    llm: LLM
    rendering: Rendering
    context: CallContext
    options: Options
    body: bytes
    headers: tuple[tuple[str, str], ...]
    key: str | None

    @property
    def model(self) -> str:
        return self.llm.model


class Admission(Protocol):
    """Says whether a request may be sent, since it costs something."""

    async def __call__(self, request: Request, used: Usage) -> Options:
        """The options to send it with: a limit of output may be lower. ``used`` is what the call has cost before, in
        attempts that failed. Raises `BudgetExceeded` if it may not be sent."""
        ...


class Provider(Protocol):
    """Somebody who can be asked. There is one for each wire; it holds nothing of any conversation."""

    async def ask(self, request: Request, hearing: Hearing) -> Answer:
        """The whole answer, with each piece told to ``hearing`` as it comes. Raises a `ModelError`.

        What it cost goes to ``hearing.usage`` as soon as it is known, so it is counted if the call fails later.
        """
        ...

    async def aclose(self) -> None:
        """Ends connections and whatever else it holds open."""
        ...
