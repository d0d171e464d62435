"""What an `LLM` may say. Whatever its wire cannot be told is refused when it is made, not when it is asked.
Tests: tests/llm/test_model.py."""

import math
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from forkpoint.errors import BadModel, BadSetting
from forkpoint.history.wholeness import read_json
from forkpoint.llm.catalog import BOUNDS, KEYS, SAMPLING, WIRES
from forkpoint.llm.key import Key

if TYPE_CHECKING:
    from forkpoint.llm.model import LLM

Complaints: TypeAlias = Iterator[tuple[str, str]]
"""Settings that cannot be as they are, each with the reason."""

_OURS = {  # fields of a request's body that are made of the conversation
    "input",
    "instructions",
    "messages",
    "model",
    "prompt_cache_key",
    "store",
    "stream",
    "stream_options",
    "system",
    "tools",
}
_ANY = (0, 10**15)  # the bounds of a number that has no other: seconds, tries, prices
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_SECRET_HEADERS = {"authorization", "proxy-authorization", "x-api-key", "api-key", "cookie"}


def check(llm: "LLM") -> None:
    """Raises `BadModel` for an invalid name, and `BadSetting` for the first invalid setting."""
    _check_name(llm)
    for complaints in (_address, _key, _numbers, _sampling, _reasoning, _cache, _headers, _extra):
        for setting, why in complaints(llm):
            raise BadSetting(llm.model, setting, why)


def _check_name(llm: "LLM") -> None:
    if "/" not in llm.model:
        raise BadModel(llm.model, "it has no provider before a slash")
    if llm.kind not in WIRES:
        raise BadModel(llm.model, f"there is no provider {llm.kind!r}")
    if not llm.name.strip():
        raise BadModel(llm.model, "nothing stands after the slash")
    if llm.kind == "local" and llm.name != "smollm2" and PurePath(llm.name).suffix != ".gguf":
        raise BadModel(llm.model, "a local model is smollm2 or a path that ends in .gguf")


def _address(llm: "LLM") -> Complaints:
    if llm.api is not None and llm.api not in WIRES[llm.kind]:
        named = f"; if the server calls it {llm.model}, name it openai/{llm.model}" if llm.base_url else ""
        yield "api", f"{llm.kind} has {' and '.join(WIRES[llm.kind])}, not {llm.api!r}{named}"
    if llm.kind not in KEYS:
        for setting in ("base_url", "api_key_env", "api_key", "headers"):
            if getattr(llm, setting):
                yield setting, "the model runs in this process"
    if llm.base_url is not None and not _is_address(llm.base_url):
        yield "base_url", "it must start with http:// or https:// and name a host, without a user or a password"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0 and "@" not in parts.netloc
        return parts.scheme in {"http", "https"} and bool(named)
    except ValueError:  # brackets or a port that make no sense
        return False


def _key(llm: "LLM") -> Complaints:
    if llm.api_key is None:
        return
    if not isinstance(llm.api_key, Key) or llm.api_key.is_blank:
        yield "api_key", "it must be a text that is not blank"
    elif not llm.api_key.is_sendable:
        yield "api_key", "it has characters that no key has"
    if llm.api_key_env is not None:
        yield "api_key", "api_key_env is set as well, and one of them must decide"


def _numbers(llm: "LLM") -> Complaints:
    numbers: dict[str, Any] = {name: getattr(llm, name) for name in SAMPLING if name != "stop"}
    for part in ("timeouts", "retries", "price"):
        fields = msgspec.structs.asdict(getattr(llm, part)) if getattr(llm, part) else {}
        numbers |= {f"{part}.{name}": number for name, number in fields.items()}
    for setting, number in numbers.items():
        if number is None:
            continue
        least, most = BOUNDS.get(setting, _ANY)
        if not isinstance(number, int | float) or (isinstance(number, float) and not math.isfinite(number)):
            yield setting, "it must be a finite number"
        elif setting in BOUNDS and number < least:
            yield setting, f"it must be {least} or more"
        elif number > most:
            yield setting, f"it must be at most {most}"
        elif setting.startswith("timeouts.") and number <= 0:
            yield setting, "it must be more than 0"
        elif "." in setting and number < (setting == "retries.attempts"):
            yield setting, "it must be 1 or more" if setting == "retries.attempts" else "it must be 0 or more"
    for setting, least in (("max_tokens", 1), ("reasoning_tokens", 1), ("context_tokens", 256)):
        value, most = getattr(llm, setting), BOUNDS["max_tokens"][1]
        if value is not None and value < least:
            yield setting, f"it must be {least} or more"
        elif value is not None and value > most:
            yield setting, f"it must be at most {most}"


def _sampling(llm: "LLM") -> Complaints:
    for setting, wires in SAMPLING.items():
        if getattr(llm, setting) not in (None, ()) and llm.wire not in wires:
            yield setting, f"the wire {llm.wire!r} has no such field"


def _reasoning(llm: "LLM") -> Complaints:
    if llm.reasoning_tokens is None:
        return
    if llm.wire != "messages":
        yield "reasoning_tokens", "only the wire 'messages' takes a number of tokens; use reasoning_effort"
    if llm.reasoning_effort is not None:
        yield "reasoning_tokens", "reasoning_effort is set as well, and one of them must decide"


def _cache(llm: "LLM") -> Complaints:
    if llm.cache_key == "send" and llm.wire in {"messages", "local"}:
        yield "cache_key", f"the wire {llm.wire!r} has no such field"
    if llm.cache_salt and llm.wire not in {"chat", "responses"}:
        yield "cache_salt", "only servers that speak OpenAI's wires take a salt"
    if llm.cache_ttl is not None and llm.wire in {"local", "scripted"}:
        yield "cache_ttl", "the model runs in this process"
    if llm.cache_ttl is not None and not llm.cache_ttl.strip():
        yield "cache_ttl", "it is blank"


def _headers(llm: "LLM") -> Complaints:
    for name in (*llm.session_headers, *(name for name, _ in llm.headers)):
        if not _HEADER.fullmatch(name):
            yield "headers", f"{name!r} is not a header's name"
        if name.lower() in _SECRET_HEADERS:
            yield "headers", f"{name} would be stored with the conversation; name the key with api_key_env"
    for name, value in llm.headers:
        if not _HEADER_VALUE.fullmatch(value):
            yield "headers", f"the value of {name!r} has characters that a header cannot have"


def _extra(llm: "LLM") -> Complaints:
    if llm.extra is None:
        return
    try:
        fields = read_json(llm.extra)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        yield "extra", "it is not a JSON object"
    elif ours := fields.keys() & (_OURS | ({"cache_salt"} if llm.cache_salt else set())):
        yield "extra", f"{', '.join(sorted(ours))} is made from the conversation"
