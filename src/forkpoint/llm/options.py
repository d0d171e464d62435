"""What one call asks for, besides its prompt."""

from msgspec import Struct

from forkpoint.errors import BadSetting


class Options(Struct, frozen=True, omit_defaults=True):
    """Settings of a single call.

    ``tool_choice``: ``auto``, ``none``, ``required``, or the name of the tool that must be used. Some providers keep no
    cache of a history across calls that differ in it.
    """

    tool_choice: str = "auto"
    parallel_calls: bool | None = None
    max_tokens: int | None = None  # wins over the LLM's

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise BadSetting("a call", "max_tokens", "it must be 1 or more")
