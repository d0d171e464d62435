"""`LLM`: which model, where, and how to ask it. Frozen data, shared by any number of conversations.

It holds nothing of a conversation: no history, no cache key, no client. A key is a reference, the name of an
environment variable, looked up at the moment of a call. A literal key is possible; it stays in memory and in no
document.
"""

import os
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from forkpoint.errors import BadSetting, MissingKey
from forkpoint.events import JsonText
from forkpoint.llm.catalog import KEYS, WIRES, Wire
from forkpoint.llm.checks import check
from forkpoint.llm.documents import read_document
from forkpoint.llm.key import Key
from forkpoint.parameters import Words, unfit_fields


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
    - ``base_url``: a compatible server. A name without a prefix is then the server's own: with it, ``LLM("qwen3")`` is
      ``openai/qwen3``, or ``anthropic/qwen3`` if ``api`` is ``messages``. No key is sent unless ``api_key_env`` or
      ``api_key`` names one, so that the key of one company is not shown to another.
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
    timeouts: Annotated[Timeouts, Words("of the class Timeouts, such as Timeouts(total=60)")] = Timeouts()
    retries: Annotated[Retries, Words("of the class Retries, such as Retries(attempts=1) for one try")] = Retries()
    price: Annotated[Price, Words("of the class Price, such as Price(input=1, output=5)")] | None = None

    cache_key: Literal["auto", "send", "never"] = "auto"
    session_headers: tuple[str, ...] = ("x-session-id", "session_id")
    cache_salt: bool = False
    cache_ttl: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    extra: JsonText | None = None

    def __post_init__(self) -> None:
        for name in ("stop", "session_headers"):
            if isinstance(getattr(self, name), str):  # one text is one of them, and not its letters
                force_setattr(self, name, (getattr(self, name),))
        for name, why in unfit_fields(self):
            raise BadSetting(str(self.model)[:200], name, why)
        if self.api_key is not None and not isinstance(self.api_key, Key):
            # What is not a text is refused below, and is not to be seen there.
            force_setattr(self, "api_key", Key(self.api_key if isinstance(self.api_key, str) else ""))
        force_setattr(self, "model", full_name(self.model, self.base_url, self.api))
        check(self)

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
        if self.api_key is not None or self.kind not in KEYS:
            return None
        return self.api_key_env or (None if self.base_url else KEYS[self.kind])

    def key(self) -> Key | None:
        """The key, looked up now; None if no key is needed. Raises `MissingKey` with the name of the variable that
        should hold it."""
        if isinstance(self.api_key, Key):
            return self.api_key
        variable = self.key_variable
        if variable is None:
            return None
        key = Key(os.environ.get(variable, ""))
        if key.is_blank:
            raise MissingKey(self.model, variable)
        if not key.is_sendable:
            raise BadSetting(self.model, variable, "it has characters that no key has")
        return key

    def replace(self, **changes: Any) -> "LLM":
        """The same model with some settings changed: ``llm.replace(temperature=0)``.

        Raises `BadSetting` for a setting that models do not have, or a value that does not fit.
        """
        for name in changes.keys() - set(self.__struct_fields__):
            raise BadSetting(self.model, name, "models have no such setting")
        return msgspec.structs.replace(self, **changes)

    def to_json(self) -> JsonText:
        """A document with everything but a literal key."""
        kept = self.replace(api_key=None) if self.api_key is not None else self
        return msgspec.json.encode(kept).decode()

    @classmethod
    def from_json(cls, text: JsonText | bytes) -> "LLM":
        """The LLM of such a document. Raises `BadSetting` for one that cannot be read."""
        return read_document(cls, text, of="a model", what="The document")


def full_name(model: str, base_url: str | None, api: str | None) -> str:
    """A model's name with what says how it is spoken to. With a base URL, a name without that is the server's own."""
    if base_url is None or not model.strip() or model.partition("/")[0] in WIRES:
        return model
    return f"anthropic/{model}" if api == "messages" else f"openai/{model}"


def as_llm(model: "str | LLM") -> LLM:
    """An LLM from its name, or the one given."""
    return model if isinstance(model, LLM) else LLM(model)
