"""The options of ``forkpoint serve`` that are about chat completions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from forkpoint.errors import BadArgument

if TYPE_CHECKING:
    from forkpoint.server.settings import ConversationHeader

_HEADER = "--conversation-header"

ConversationHeaders: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        _HEADER,
        metavar="NAME[=full]",
        help="Chat completions: the header that names the conversation, and whether all of a client's list counts "
        "(full) or its newest message (latest). Repeatable. Default: X-Conversation-Id.",
        show_default=False,
    ),
]

ConversationsMax: TypeAlias = Annotated[
    int,
    typer.Option(
        "--conversations-max",
        metavar="N",
        min=1,
        help="Chat completions: conversations that are kept in memory. The store has the others.",
    ),
]

ConversationTtl: TypeAlias = Annotated[
    float,
    typer.Option(
        "--conversation-ttl",
        metavar="S",
        min=0,
        help="Chat completions: seconds that one which nobody uses is kept in memory.",
    ),
]

OnDisconnect: TypeAlias = Annotated[
    Literal["cancel", "finish"],
    typer.Option(
        "--on-disconnect",
        metavar="WHAT",
        help="Chat completions: what becomes of a turn whose client goes: cancel or finish.",
    ),
]

System: TypeAlias = Annotated[
    Literal["first", "follow"],
    typer.Option(
        "--system",
        metavar="WHOSE",
        help="Chat completions: the first request's system messages stay, or later ones apply: first or follow.",
    ),
]

Strict: TypeAlias = Annotated[
    bool, typer.Option("--strict", help="Chat completions: refuse fields that are not known, and do not ignore them.")
]

Reasoning: TypeAlias = Annotated[
    Literal["reasoning_content", "off"],
    typer.Option(
        "--reasoning", metavar="HOW", help="Chat completions: how thoughts are shown: reasoning_content or off."
    ),
]


def conversation_headers(given: Iterable[str] | None) -> "tuple[ConversationHeader, ...]":
    """The headers that ``--conversation-header`` named, which take the place of the default."""
    from forkpoint.server.settings import ConversationHeader, ServerSettings

    if not given:
        return ServerSettings().conversation_headers
    found: dict[str, ConversationHeader] = {}
    for one in given:
        name, equals, history = one.partition("=")
        if equals and history not in ("latest", "full"):
            raise typer.BadParameter(f"{one!r} is not of the form NAME, NAME=full or NAME=latest", param_hint=_HEADER)
        if name.lower() in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=_HEADER)
        try:
            found[name.lower()] = ConversationHeader(name, history or None)  # type: ignore[arg-type]  # one of the two
        except BadArgument as error:
            raise typer.BadParameter(f"{name!r} cannot be taken: {error.why}", param_hint=_HEADER) from None
    return tuple(found.values())
