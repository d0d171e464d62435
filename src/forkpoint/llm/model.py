"""`LLM`: which model, where, and how to ask it. Frozen data, shared by any number of conversations.

It holds nothing of a conversation: no history, no cache key, no client. A key is a reference, the name of an
environment variable, looked up at the moment of a call. A literal key is possible; it stays in memory and in no
document.
"""

import math
import os
import re
from pathlib import PurePath
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from forkpoint.errors import BadModel, BadSetting, MissingKey
from forkpoint.events import JsonText
from forkpoint.llm.key import Key, is_sendable

Wire: TypeAlias = Literal["chat", "responses", "messages", "local", "scripted"]
"""How a model is spoken to. ``local`` and ``scripted`` run in this process and read what ``chat`` renders."""

WIRES: dict[str, tuple[Wire, ...]] = {  # which wires each kind of model has, the default first
    "openai": ("responses", "chat"),
    "anthropic": ("messages",),
    "local": ("local",),
    "scripted": ("scripted",),
}

_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}

SAMPLING: dict[str, frozenset[Wire]] = {  # which wires can be told what
    "temperature": frozenset({"chat", "responses", "messages", "local", "scripted"}),
    "top_p": frozenset({"chat", "responses", "messages", "local", "scripted"}),
    "top_k": frozenset({"messages", "local", "scripted"}),
    "seed": frozenset({"chat", "local", "scripted"}),
    "stop": frozenset({"chat", "messages", "local", "scripted"}),
    "presence_penalty": frozenset({"chat", "local", "scripted"}),
    "frequency_penalty": frozenset({"chat", "local", "scripted"}),
}


class Timeouts(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long to wait, in seconds. ``first`` is for the first piece of an answer, ``idle`` between two pieces."""

    connect: float = 10.0
    first: float = 120.0
    idle: float = 60.0
    total: float = 900.0


class Retries(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often a call is tried in all, and how long to wait in between: doubling from ``wait``, with jitter.

    A provider that says how long to wait is obeyed, up to ``longest``; if it asks for more, the call fails at once.
    """

    attempts: int = 3
    wait: float = 0.5
    longest: float = 60.0


class Price(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Dollars for a million tokens. What is not given costs what plain input costs."""

    input: float
    output: float
    cached: float | None = None
    written: float | None = None


class LLM(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A model and how to ask it. ``LLM("openai/gpt-5.6")`` is enough; the rest has defaults.

    - ``model``: ``openai/NAME``, ``anthropic/NAME``, ``local/smollm2``, ``local/PATH.gguf``, ``scripted/NAME``.
    - ``api``: the wire, where there is a choice. By default ``responses`` for OpenAI itself, ``chat`` with a base URL.
    - ``base_url``: a compatible server. Then no key is sent unless ``api_key_env`` or ``api_key`` names one, so that
      the key of one company is not shown to another.
    - ``provider``: a name for whoever serves the model, to tell whose signatures are whose. Default: ``openai``,
      ``anthropic``, or the host of the base URL.
    - ``reasoning_back``: whether thoughts are sent back to the provider they came from.
    - ``cache_key``: ``send`` the prompt-cache key, ``never``, or ``auto``: send it until a server refuses it by name.
    - ``session_headers``: which headers carry the session's identity, for servers and gateways that route by one.
    - ``cache_salt``: send the tenant's salt as ``cache_salt`` (vLLM), so that tenants cannot probe each other's cache.
    - ``cache_ttl``: how long the provider shall keep the prompt (``5m``, ``1h``; ``30m``, ``12h``).
    - ``extra``: further fields of the request's body, as a JSON object, for what a server has beyond its wire.
    """

    model: str
    api: Wire | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    api_key: Any = None  # a str when given, a Key ever after
    provider: str | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None

    reasoning_effort: str | None = None
    reasoning_tokens: int | None = None
    reasoning_back: bool = True

    context_tokens: int | None = None
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    price: Price | None = None

    cache_key: Literal["auto", "send", "never"] = "auto"
    session_headers: tuple[str, ...] = ("x-session-id", "session_id")
    cache_salt: bool = False
    cache_ttl: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    extra: JsonText | None = None

    def __post_init__(self) -> None:
        if isinstance(self.api_key, str):
            force_setattr(self, "api_key", Key(self.api_key))
        for name in ("stop", "session_headers"):
            if isinstance(getattr(self, name), str):  # one text is one of them, and not its letters
                force_setattr(self, name, (getattr(self, name),))
        _check(self)

    @property
    def kind(self) -> str:
        """What stands before the first slash: openai, anthropic, local or scripted."""
        return self.model.partition("/")[0]

    @property
    def name(self) -> str:
        """The model's name as its provider knows it."""
        return self.model.partition("/")[2]

    @property
    def wire(self) -> Wire:
        """How this model is spoken to."""
        if self.api is not None:
            return self.api
        return "chat" if self.kind == "openai" and self.base_url else WIRES[self.kind][0]

    @property
    def served_by(self) -> str:
        """Who serves the model, for telling whose items are whose. A port does not matter."""
        if self.provider is not None:
            return self.provider
        return (urlsplit(self.base_url).hostname or self.kind) if self.base_url else self.kind

    @property
    def key_variable(self) -> str | None:
        """The environment variable that holds the key; None if no key is needed, or a literal one is given."""
        if self.api_key is not None or self.kind not in _KEYS:
            return None
        return self.api_key_env or (None if self.base_url else _KEYS[self.kind])

    def key(self) -> str | None:
        """The key, looked up now. Raises `MissingKey` with the name of the variable that should hold it."""
        if isinstance(self.api_key, Key):
            return self.api_key.reveal()
        variable = self.key_variable
        if variable is None:
            return None
        value = os.environ.get(variable, "").strip()
        if not value:
            raise MissingKey(self.model, variable)
        if not is_sendable(value):
            raise BadSetting(self.model, variable, "it has characters that no key has")
        return value

    def to_json(self) -> JsonText:
        """A document with everything but a literal key."""
        kept = msgspec.structs.replace(self, api_key=None) if self.api_key is not None else self
        return msgspec.json.encode(kept).decode()

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "LLM":
        """The LLM of such a document. Raises `BadSetting` for a document that is none."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise BadSetting("a model", "its document", str(error)) from None


def as_llm(model: "str | LLM") -> LLM:
    """An LLM from its name, or the one given."""
    return model if isinstance(model, LLM) else LLM(model)


_OURS = {
    "model",
    "messages",
    "input",
    "instructions",
    "system",
    "tools",
    "stream",
    "prompt_cache_key",
    "store",
    "stream_options",
}
_SECRET_HEADERS = {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _check(llm: LLM) -> None:
    def refuse(setting: str, why: str) -> None:
        raise BadSetting(llm.model, setting, why)

    if "/" not in llm.model:
        raise BadModel(llm.model, "it has no provider before a slash")
    if llm.kind not in WIRES:
        raise BadModel(llm.model, f"there is no provider {llm.kind!r}")
    if not llm.name.strip():
        raise BadModel(llm.model, "nothing stands after the slash")
    if llm.kind == "local" and llm.name != "smollm2" and PurePath(llm.name).suffix != ".gguf":
        raise BadModel(llm.model, "a local model is smollm2 or a path that ends in .gguf")
    if llm.api is not None and llm.api not in WIRES[llm.kind]:
        refuse("api", f"{llm.kind} has {' and '.join(WIRES[llm.kind])}, not {llm.api!r}")
    if llm.kind not in _KEYS:
        for setting in ("base_url", "api_key_env", "api_key", "headers"):
            if getattr(llm, setting):
                refuse(setting, "the model runs in this process")
    if llm.base_url is not None and not _is_address(llm.base_url):
        refuse("base_url", "it must start with http:// or https:// and name a host, without a user or a password")
    if llm.api_key is not None and not (isinstance(llm.api_key, Key) and llm.api_key.reveal()):
        refuse("api_key", "it must be a text that is not blank")
    if isinstance(llm.api_key, Key) and not is_sendable(llm.api_key.reveal()):
        refuse("api_key", "it has characters that no key has")
    if llm.api_key is not None and llm.api_key_env is not None:
        refuse("api_key", "api_key_env is set as well, and one of them must decide")
    numbers = {name: getattr(llm, name) for name in SAMPLING if name != "stop"}
    for part in ("timeouts", "retries", "price"):
        value = getattr(llm, part)
        numbers |= {
            f"{part}.{name}": number for name, number in (msgspec.structs.asdict(value) if value else {}).items()
        }
    for setting, number in numbers.items():
        if number is not None and not (isinstance(number, int | float) and math.isfinite(number)):
            refuse(setting, "it must be a finite number")
        if number is not None and "." in setting and number < 0:
            refuse(setting, "it must be 0 or more")
    for setting, wires in SAMPLING.items():
        if getattr(llm, setting) not in (None, ()) and llm.wire not in wires:
            refuse(setting, f"the wire {llm.wire!r} has no such field")
    if llm.max_tokens is not None and llm.max_tokens < 1:
        refuse("max_tokens", "it must be 1 or more")
    if llm.context_tokens is not None and llm.kind != "local":
        refuse("context_tokens", "only a local model's context can be chosen here")
    if llm.context_tokens is not None and llm.context_tokens < 256:
        refuse("context_tokens", "it must be 256 or more")
    if llm.reasoning_tokens is not None and llm.wire != "messages":
        refuse("reasoning_tokens", "only the wire 'messages' takes a number of tokens; use reasoning_effort")
    if llm.reasoning_tokens is not None and llm.reasoning_effort is not None:
        refuse("reasoning_tokens", "reasoning_effort is set as well, and one of them must decide")
    if llm.cache_ttl is not None and llm.wire in {"local", "scripted"}:
        refuse("cache_ttl", "the model runs in this process")
    if llm.cache_salt and llm.wire not in {"chat", "responses"}:
        refuse("cache_salt", "only servers that speak OpenAI's wires take a salt")
    if llm.reasoning_tokens is not None and llm.reasoning_tokens < 1:
        refuse("reasoning_tokens", "it must be 1 or more")
    if llm.cache_key == "send" and llm.wire in {"messages", "local"}:
        refuse("cache_key", f"the wire {llm.wire!r} has no such field")
    if llm.cache_ttl is not None and not llm.cache_ttl.strip():
        refuse("cache_ttl", "it is blank")
    if llm.retries.attempts < 1:
        refuse("retries.attempts", "it must be 1 or more")
    for name in ("connect", "first", "idle", "total"):
        if not getattr(llm.timeouts, name) > 0:
            refuse(f"timeouts.{name}", "it must be more than 0")
    for name in (*llm.session_headers, *(name for name, _ in llm.headers)):
        if not _HEADER.fullmatch(name):
            refuse("headers", f"{name!r} is not a header's name")
        if name.lower() in _SECRET_HEADERS:
            refuse("headers", f"{name} would be stored with the conversation; name the key with api_key_env")
    for name, value in llm.headers:
        if not _HEADER_VALUE.fullmatch(value):
            refuse("headers", f"the value of {name!r} has characters that a header cannot have")
    if llm.extra is not None:
        _check_object(llm)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0 and "@" not in parts.netloc
        return parts.scheme in {"http", "https"} and bool(named)
    except ValueError:  # brackets or a port that are none
        return False


def _check_object(llm: LLM) -> None:
    try:
        fields = msgspec.json.decode(llm.extra or "")
    except (msgspec.DecodeError, UnicodeEncodeError):
        fields = None
    if not isinstance(fields, dict):
        raise BadSetting(llm.model, "extra", "it is not a JSON object")
    if ours := fields.keys() & (_OURS | ({"cache_salt"} if llm.cache_salt else set())):
        raise BadSetting(llm.model, "extra", f"{', '.join(sorted(ours))} is made from the conversation")
