"""The words that all wires use: what is shown of results, of what is missing, and of what a wire has no place for.
Tests: tests/llm/test_rendering.py."""

from collections.abc import Sequence

from forkpoint.events import AssistantMessage, File, HookRun, Image, Part, Text, ToolResult, TurnStopped
from forkpoint.llm.wires.wire import Lose

ERASED = "[erased]"
UNREADABLE = "[written by a newer version, and not readable by this one]"
STARTS_HERE = "(The conversation starts here.)"

_WITHOUT_WORDS = {
    "done": "(no output)",
    "failed": "The tool failed and did not say why.",
    "unknown": "The call was started, and it is not known whether it finished. It was not run again.",
    "denied": "The user did not allow this call, and it was not run.",
    "not_run": "This call was not run in this branch of the conversation.",
    "not_answered": "No result was given: the user sent a new message instead.",
}


_NOT_DONE = {
    "failed": "Error:",
    "unknown": "It is not known whether this call finished. What there is of it:",
    "denied": "The user did not allow this call:",
    "not_run": "This call was not run in this branch of the conversation:",
    "not_answered": "No result was given:",
}


def words_of(result: ToolResult) -> tuple[Part, ...]:
    """What a result says: its parts, blank ones aside, or a sentence for its status if it has none."""
    parts = tuple(part for part in result.parts if not isinstance(part, Text) or part.text.strip())
    return parts or (Text(_WITHOUT_WORDS[result.status]),)


def marked_words_of(result: ToolResult) -> tuple[Part, ...]:
    """The same for a wire that has no flag for errors: nothing that is not done looks as if it were."""
    parts = words_of(result)
    if result.status == "done" or parts == (Text(_WITHOUT_WORDS[result.status]),):
        return parts
    first, *rest = parts
    if isinstance(first, Text):
        return (Text(f"{_NOT_DONE[result.status]} {first.text}"), *rest)
    return (Text(_NOT_DONE[result.status]), *parts)


def spoken_parts(body: AssistantMessage, lose: Lose) -> list[Text]:
    """What a model said in words. Whatever else it made has no place in the history that it is shown."""
    words = [part for part in body.parts if isinstance(part, Text)]
    if len(words) < len(body.parts):
        lose("a picture or file made by a model")
    return words


def text_of(parts: Sequence[Part]) -> str:
    """The words among these parts."""
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def instead_of(part: Image | File) -> Text:
    """What is shown of a picture or document that a wire cannot carry."""
    what = f"{part.name}, {part.media_type}" if isinstance(part, File) else part.media_type
    where = f", at {part.url}" if part.url else ""
    return Text(f"[{'file' if isinstance(part, File) else 'picture'}: {what}{where}]")


def lost_part(part: Image | File) -> str:
    """How the loss of such a part is named."""
    return f"a {'file' if isinstance(part, File) else 'picture'} of type {part.media_type}"


def summary_words(summary: str) -> str:
    """How a condensed stretch of history is shown."""
    return f"Summary of the conversation until here:\n\n{summary}"


def skill_words(name: str, content: str) -> str:
    """How an activated skill is shown."""
    return f'<skill name="{name}">\n{content}\n</skill>'


def hook_words(run: HookRun) -> str | None:
    """What a model is told of a hook's run; None if that is nothing. A call that was blocked has a result."""
    said = run.context
    if run.blocked and run.moment == "turn_end":
        said = f"Your answer was not taken, so go on: {run.reason}"
    elif run.blocked and run.moment == "after_tool":
        said = f"This was objected to after call {run.call_id}, whose effect stays: {run.reason}"
    elif run.blocked:
        said = None
    return None if not said else f'<hook name="{run.hook}">\n{said}\n</hook>'


def stopped_words(stopped: TurnStopped) -> str:
    """What a model is told of a turn that ended without its answer."""
    return f"<stopped>\nThe turn ended here: it reached its limit of {stopped.limit} {stopped.what}.\n</stopped>"


def system_words(text: str) -> str:
    """How a system message is shown where the wire has no place for one."""
    return f"<system>\n{text}\n</system>"
