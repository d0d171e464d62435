"""Scripts: answers that are chosen beforehand, for tests, demonstrations and benchmarks.

A `Script` gives one `Reply` for each call: the next of a list, or what a function makes of what it heard. The same
scripts drive the model ``scripted/NAME``, which runs in this process, and the recording model server of
`forkpoint.testing`, which speaks to any client over HTTP.
"""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from forkpoint.errors import BadModel
from forkpoint.events import JsonText, Usage
from forkpoint.llm.answers import Finish

FaultKind: TypeAlias = Literal[
    "authentication",
    "quota",
    "rate_limit",
    "context_too_long",
    "refused",  # the content is refused
    "bad_request",
    "overloaded",
    "status",  # exactly the status that the fault names
    "hang",  # nothing more comes, and the connection stays open
    "cut",  # the connection breaks
    "malformed",  # a piece that is no JSON
    "unfinished",  # the answer ends without saying that it has ended
    "unfinished_call",  # the answer ends inside the arguments of its last tool call
    "empty",  # an answer with nothing in it
    "refuses_cache_key",  # a bad request that names prompt_cache_key, as long as the field is sent
]


class Fault(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How a call goes wrong, after so many pieces of its answer. Before the first piece it is an error status."""

    kind: FaultKind
    after: int = 0
    retry_after: float | None = None
    status: int | None = None
    message: str | None = None


class ScriptedCall(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tool call. ``arguments`` is the exact text, valid JSON or not. Without an id it gets one from its place."""

    tool: str
    arguments: str = "{}"
    call_id: str | None = None


class Reply(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One answer. Times are in seconds: ``delay`` before the first piece, ``pace`` before each further one.

    ``reasoning`` is a thought, or several of them.
    """

    text: str = ""
    reasoning: str | tuple[str, ...] = ""
    calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None  # what is reported; estimated if None
    finish: Finish | None = None  # by default what fits the answer
    delay: float = 0.0
    pace: float = 0.0
    piece: int = 16  # characters of text or arguments in each piece
    fault: Fault | None = None

    @property
    def thoughts(self) -> tuple[str, ...]:
        thoughts = (self.reasoning,) if isinstance(self.reasoning, str) else self.reasoning
        return tuple(thought for thought in thoughts if thought)

    @property
    def finished(self) -> Finish:
        return self.finish or ("tool_calls" if self.calls else "stop")


class Heard(Struct, frozen=True):
    """What a script's function is given: the request, as the model would see it."""

    number: int  # how many calls there were before this one
    model: str
    body: Any  # the request's JSON
    text: str  # the newest user message, in words
    wire: str = "chat"


Replies: TypeAlias = Sequence[Reply] | Callable[[Heard], Reply]


class PromptCache(Protocol):
    """Something that counts the tokens of prompts, and how many of them a provider would have in its cache."""

    def of_body(self, body: Any, *, wire: str, key: str | None) -> Usage: ...


class Script:
    """Replies for the calls to come. Safe to share between threads and tasks: each call takes exactly one.

    A list is used up in order, and one more call than it has replies is a `BadModel`, unless it repeats. ``cache``
    gives the usage that a provider's cache would report; without one nothing is ever cached.
    """

    def __init__(
        self, replies: Replies, *, repeat: bool = False, name: str = "", cache: PromptCache | None = None
    ) -> None:
        self.name = name or "unnamed"
        self.cache = cache
        self._replies = replies
        self._repeat = repeat
        self._lock = threading.Lock()
        self._taken = 0

    @property
    def taken(self) -> int:
        """How many calls there were."""
        return self._taken

    def reply(self, model: str, body: Any, *, wire: str = "chat") -> tuple[int, Reply]:
        """The number of this call, from 0, and the reply to it."""
        with self._lock:
            number = self._taken
            self._taken += 1
        if callable(self._replies):
            return number, self._replies(Heard(number, model, body, last_words(body), wire))
        if not self._replies or (number >= len(self._replies) and not self._repeat):
            raise BadModel.bad_script(self.name, f"call {number + 1} came, and it has {len(self._replies)} replies")
        return number, self._replies[number % len(self._replies)]

    def register(self, name: str) -> str:
        """Makes this the script of ``scripted/NAME`` in this process. Gives that model's name back."""
        self.name = name
        with _LOCK:
            _SCRIPTS[name] = self
        return f"scripted/{name}"

    @classmethod
    def load(cls, path: Path) -> "Script":
        """The script in a JSON file: a list of replies, or an object with ``replies`` and ``repeat``."""
        try:
            document = msgspec.json.decode(path.read_bytes(), type=_ScriptDocument | list[Reply])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadModel.bad_script(str(path), str(error)) from None
        if isinstance(document, list):
            return cls(document, name=str(path))
        return cls(document.replies, repeat=document.repeat, name=str(path))


class _ScriptDocument(Struct, frozen=True, forbid_unknown_fields=True):
    replies: tuple[Reply, ...]
    repeat: bool = False


def script_named(name: str) -> Script:
    """The script of ``scripted/NAME``: registered, or a JSON file. Raises `BadModel` if there is none."""
    with _LOCK:
        if name in _SCRIPTS:
            return _SCRIPTS[name]
        if not name.endswith(".json") or not os.path.isfile(name):
            raise BadModel.no_script(name)
        return _SCRIPTS.setdefault(name, Script.load(Path(name)))


def in_pieces(text: str, size: int) -> list[str]:
    """A text in pieces of so many characters, as it is streamed."""
    size = max(size, 1)
    return [text[start : start + size] for start in range(0, len(text), size)]


def last_words(body: JsonText | Any) -> str:
    """The text of the newest user message in the body of a request, on any wire."""
    items: Any = (body.get("messages") or body.get("input")) if isinstance(body, dict) else None
    if isinstance(items, str):
        return items
    newest_first: list[Any] = items[::-1] if isinstance(items, list) else []
    for item in newest_first:
        if isinstance(item, dict) and item.get("role") == "user" and (said := _words(item.get("content"))):
            return said
    return ""


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part.get("text") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return "".join(part for part in parts if isinstance(part, str))


_LOCK = threading.Lock()
_SCRIPTS: dict[str, Script] = {"echo": Script(lambda heard: Reply(f"You said: {heard.text}"), name="echo")}
