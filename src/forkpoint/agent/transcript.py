"""A stretch of history as a text for a model to read, within a bound; and about how many tokens things have.
Tests: tests/agent/test_condenser.py."""

from collections.abc import Iterator, Sequence

from forkpoint.events import (
    AssistantMessage,
    Content,
    Event,
    File,
    HookRun,
    Image,
    Part,
    Reasoning,
    SkillActivated,
    SystemMessage,
    Text,
    ToolCall,
    ToolResult,
    TurnStopped,
    UserMessage,
)

_BYTES = 4  # of a token, as providers say of English; code and other languages have fewer
_MESSAGE = 4  # tokens around each message
_PICTURE = 1000  # tokens, in the middle of what providers say
_FILE = 3000

_BOUNDS = ((16_000, 4_000), (4_000, 1_000), (1_000, 250), (300, 80))  # characters of what is said, and of the rest


def tokens_in(body: Content | str) -> int:
    """About how many tokens a prompt has for this, if it shows it."""
    match body:
        case str():
            return len(body.encode(errors="replace")) // _BYTES
        case UserMessage(parts=parts) | AssistantMessage(parts=parts) | SystemMessage(parts=parts):
            return _MESSAGE + sum(map(_tokens_in_part, parts))
        case ToolResult(parts=parts):
            return _MESSAGE + sum(map(_tokens_in_part, parts))
        case ToolCall(tool=tool, arguments=arguments):
            return _MESSAGE + tokens_in(tool) + tokens_in(arguments)
        case Reasoning(text=text, encrypted=encrypted):
            return _MESSAGE + tokens_in(text or encrypted or "")
        case SkillActivated(name=name, content=content):
            return _MESSAGE + tokens_in(name) + tokens_in(content)
        case HookRun(context=context):
            return tokens_in(context) if context else 0
        case _:
            return 0  # of a condensation the summary is counted once, with the path; of the rest a model hears nothing


def transcript(events: Sequence[Event], most: int) -> str:
    """What was said and done, in order, in about ``most`` characters at most: then long parts lose their middle.

    System messages are not in it, since prompts go on to show them; nor are thoughts.
    """
    text = ""
    for bounds in _BOUNDS:
        text = "\n\n".join(_lines(events, *bounds))
        if len(text) <= most:
            return text
    return shortened(text, most)


def shortened(text: str, most: int) -> str:
    """A text without its middle, if it is too long."""
    if len(text) <= most:
        return text
    left_out = f"\n[... {len(text) - most:,} characters left out ...]\n"
    begin = most * 2 // 3
    return f"{text[:begin]}{left_out}{text[len(text) - (most - begin) :]}"


def _lines(events: Sequence[Event], message: int, other: int) -> Iterator[str]:
    for event in events:
        match event.body:
            case UserMessage(parts=parts):
                yield f"[user]\n{shortened(_words(parts), message)}"
            case AssistantMessage(parts=parts):
                yield f"[assistant]\n{shortened(_words(parts), message)}"
            case ToolCall(tool=tool, arguments=arguments):
                yield f"[assistant calls {tool}]\n{shortened(arguments, other)}"
            case ToolResult(tool=tool, status=status, parts=parts):
                yield f"[{tool}: {status.replace('_', ' ')}]\n{shortened(_words(parts), other)}".rstrip()
            case SkillActivated(name=name):
                yield f"[the skill {name} was activated]"
            case TurnStopped(what=what, limit=limit):
                yield f"[the turn ended here: it reached its limit of {limit} {what}]"
            case HookRun(hook=hook, context=str(context)):
                yield f"[the hook {hook}]\n{shortened(context, other)}"
            case _:
                pass


def _words(parts: Sequence[Part]) -> str:
    said = []
    for part in parts:
        match part:
            case Text(text=text):
                said.append(text)
            case Image():
                said.append("[a picture]")
            case File(name=name):
                said.append(f"[the file {name}]")
    return "\n".join(said)


def _tokens_in_part(part: Part) -> int:
    match part:
        case Text(text=text):
            return tokens_in(text)
        case Image():
            return _PICTURE
        case File():
            return _FILE
