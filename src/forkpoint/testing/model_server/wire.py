"""What a wire must be able to say. There is one module for each: `chat`, `responses`, `messages`."""

from collections.abc import Iterator
from typing import Any, Protocol

from msgspec import Struct

from forkpoint.llm.scripts import Fault
from forkpoint.testing.model_server.speech import Speech, StreamEvent


class Refusal(Struct, frozen=True):
    """A request that fails: its status, and the words of its error, of which each wire uses those that it has."""

    status: int
    type: str
    message: str
    code: str | None = None
    param: str | None = None


class ModelWire(Protocol):
    """How one provider speaks."""

    name: str
    path: str
    required: tuple[str, ...]  # fields without which a request is refused
    piece_event: str  # how the event is called that brings a piece of text; empty if events have no names
    refuses_prompts: bool  # whether a refusal before the first piece is an error status, or an answer like any other

    def problem(self, fault: Fault) -> Refusal:
        """What the provider says for such a fault. Faults that are no errors of a provider have none."""
        ...

    def refused(self, message: str, *, code: str | None = None, param: str | None = None) -> Refusal:
        """A bad request."""
        ...

    def error(self, problem: Refusal, request_id: str) -> dict[str, Any]:
        """The body of an error status."""
        ...

    def whole(self, speech: Speech) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        ...

    def stream(self, speech: Speech) -> Iterator[StreamEvent]:
        """The events of an answer that is streamed."""
        ...

    def broken(self, problem: Refusal, speech: Speech, sent: int) -> StreamEvent:
        """The event that says that a stream failed, after so many events."""
        ...
