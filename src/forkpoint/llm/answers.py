"""What comes back from a model: one outcome, after pieces while it speaks (`forkpoint.updates`).

A call ends in exactly one of two ways. `Complete` has the whole answer, as bodies of events that are ready to be
journalled. `Failed` has a typed error. Both have a `ModelCalled`, so what was spent is counted either way. There is
no third way, and success is never inferred from the absence of an error. Tests: tests/llm/test_streams.py.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from forkpoint.errors import ModelError
from forkpoint.events import AssistantMessage, ModelCalled, Reasoning, Text, ToolCall, Usage

Finish: TypeAlias = Literal["stop", "tool_calls", "length", "filter"]
"""Why the model stopped: it was done, it waits for tools, it reached a limit of tokens, or its provider's filter
stopped it in the middle of its text."""

Said: TypeAlias = Reasoning | AssistantMessage | ToolCall
"""One thing that a model says."""


class Answer(Struct, frozen=True):
    """A whole answer."""

    said: tuple[Said, ...]
    finish: Finish
    response_id: str | None = None

    @property
    def text(self) -> str:
        """All that was said in words, thoughts aside."""
        parts = (part for body in self.said if isinstance(body, AssistantMessage) for part in body.parts)
        return "".join(part.text for part in parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools that the model asks for, in its order."""
        return tuple(body for body in self.said if isinstance(body, ToolCall))


class Complete(Struct, frozen=True):
    """The model answered."""

    answer: Answer
    called: ModelCalled

    @property
    def usage(self) -> Usage:
        return self.called.usage


class Failed(Struct, frozen=True):
    """The model did not answer, and why."""

    error: ModelError
    called: ModelCalled

    @property
    def usage(self) -> Usage:
        return self.called.usage


Outcome: TypeAlias = Complete | Failed


def cut_of(called: ModelCalled) -> str | None:
    """How the answer of a call was cut, in words; None if it was not: "cut at the limit of 256 tokens"."""
    match called.finish:
        case "length":
            return f"cut at the limit of {called.usage.output:,} tokens" if called.usage.output else "cut at a limit"
        case "filter":
            return "cut off by its provider's filter"
        case _:
            return None
