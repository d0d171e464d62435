"""What providers refuse, written down from their documentation and their error messages, and not from our renderer.

`broken_rules` reads the body of a request as its provider would, and says what that provider would object to.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def broken_rules(wire: str, body: bytes) -> list[str]:
    """What is wrong with a body, one sentence each. Nothing, if its provider would take it."""
    try:
        request = json.loads(body, parse_constant=_no_constant)
    except ValueError as error:
        return [f"it is not JSON: {error}"]
    rules = {"responses": _responses, "messages": _messages}.get(wire, _chat)
    return list(rules(request))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _blank(text: Any) -> bool:
    return not isinstance(text, str) or not text.strip()


# Chat Completions.


def _chat(request: dict[str, Any]) -> Iterator[str]:
    messages = request["messages"]
    due: list[str] = []
    for n, message in enumerate(messages):
        role = message["role"]
        where = f"message {n} ({role})"
        if due and role != "tool":
            yield f"{where} stands where results for {due} are due"
            due = []
        match role:
            case "tool":
                id = message["tool_call_id"]
                if id not in due:
                    yield f"{where} answers {id!r}, which is not open"
                else:
                    due.remove(id)
                if not isinstance(message["content"], str) or not message["content"]:
                    yield f"{where} has no text: {message['content']!r}"
            case "assistant":
                yield from _chat_content(where, message.get("content"), {"text"}, needed="tool_calls" not in message)
                calls = message.get("tool_calls", ())
                if "tool_calls" in message and not calls:
                    yield f"{where} has an empty list of calls"
                for call in calls:
                    yield from _call(where, call["id"], call["function"]["name"])
                    if not isinstance(call["function"]["arguments"], str):
                        yield f"{where}: arguments are a string on this wire"
                due = [call["id"] for call in calls]
                if len(set(due)) < len(due):
                    yield f"{where} has one id twice: {due}"
            case "system":
                yield from _chat_content(where, message["content"], {"text"}, needed=True)
            case "user":
                yield from _chat_content(where, message["content"], {"text", "image_url", "file"}, needed=True)
            case _:
                yield f"{where}: there is no such role"
    if due:
        yield f"the request ends where results for {due} are due"


def _chat_content(where: str, content: Any, kinds: set[str], *, needed: bool) -> Iterator[str]:
    if content is None:
        if needed:
            yield f"{where} has no content"
        return
    if isinstance(content, str):
        if _blank(content):
            yield f"{where} has blank content"
        return
    if not content:
        yield f"{where} has an empty list of parts"
    for part in content:
        if part["type"] not in kinds:
            yield f"{where} may not have a part of type {part['type']!r}"
        elif part["type"] == "text" and _blank(part["text"]):
            yield f"{where} has a blank text"
        elif part["type"] == "image_url" and not re.match(r"data:|https?://", part["image_url"]["url"]):
            yield f"{where} has a picture without a source"
        elif part["type"] == "file" and not part["file"].get("file_data", "").startswith("data:"):
            yield f"{where}: a file goes as data on this wire, not as {part['file']}"


def _call(where: str, id: str, name: str) -> Iterator[str]:
    if not _ID.fullmatch(id):
        yield f"{where}: the provider refuses the call id {id!r}"
    if not _NAME.fullmatch(name):
        yield f"{where}: the provider refuses the tool's name {name!r}"


# Responses.


def _responses(request: dict[str, Any]) -> Iterator[str]:
    due: list[str] = []
    thought = False
    for n, item in enumerate(request["input"]):
        kind = item.get("type", "message")
        where = f"item {n} ({kind})"
        ours = kind == "function_call_output" or (kind == "message" and item["role"] != "assistant")
        if thought and ours:
            yield f"{where} follows a reasoning item, whose own item is missing"
        thought = kind == "reasoning"
        match kind:
            case "function_call":
                if "id" not in item:  # what the provider made itself it takes back
                    yield from _call(where, item["call_id"], item["name"])
                if item["call_id"] in due:
                    yield f"{where}: call {item['call_id']!r} is open already"
                if not isinstance(item["arguments"], str):
                    yield f"{where}: arguments are a string on this wire"
                due.append(item["call_id"])
            case "function_call_output":
                if item["call_id"] not in due:
                    yield f"{where} answers {item['call_id']!r}, which is not open"
                else:
                    due.remove(item["call_id"])
                if not item["output"]:
                    yield f"{where} is empty"
                if isinstance(item["output"], list):
                    yield from _items_content(where, item["output"], "input")
            case "message":
                if due and item["role"] != "assistant":
                    yield f"{where} stands where outputs for {due} are due"
                yield from _items_content(where, item["content"], "output" if item["role"] == "assistant" else "input")
            case "reasoning":
                if not item.get("encrypted_content"):
                    yield f"{where} has no encrypted content, and nothing is stored at the provider's"
            case _:
                yield f"{where}: there is no such item"
    if thought:
        yield "the request ends with a reasoning item, whose own item is missing"
    if due:
        yield f"the request ends where outputs for {due} are due"


def _items_content(where: str, parts: Any, side: str) -> Iterator[str]:
    kinds = {"output_text"} if side == "output" else {"input_text", "input_image", "input_file"}
    if not parts:
        yield f"{where} has no content"
    for part in parts:
        if part["type"] not in kinds:
            yield f"{where} may not have a part of type {part['type']!r}"
        elif "text" in part["type"] and _blank(part["text"]):
            yield f"{where} has a blank text"


# Messages.


def _messages(request: dict[str, Any]) -> Iterator[str]:
    yield from _marks(request)
    for block in request.get("system", ()):
        if block["type"] != "text" or _blank(block["text"]):
            yield f"a system block is blank or no text: {block}"
    before: list[str] = []  # the calls of the message before
    seen: set[str] = set()
    expected = "user"
    for n, message in enumerate(request["messages"]):
        role, content = message["role"], message["content"]
        where = f"message {n} ({role})"
        if role != expected:
            yield f"{where}: a message of role {expected!r} is due"
        expected = "user" if role == "assistant" else "assistant"
        if not content:
            yield f"{where} is empty"
            continue
        for block in content:
            yield from _block(where, block, role)
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        leading = [block["tool_use_id"] for block in content[: len(results)] if block["type"] == "tool_result"]
        if sorted(results) != sorted(before):
            yield f"{where} has results for {results}, and due are those for {before}"
        if leading != results:
            yield f"{where} has something before its results"
        before = [block["id"] for block in content if block["type"] == "tool_use"]
        for id in before:
            if id in seen:
                yield f"{where}: `tool_use` ids must be unique, and {id!r} stood there before"
            seen.add(id)
        if role == "assistant" and content[-1]["type"] in {"thinking", "redacted_thinking"}:
            yield f"{where}: the final block in an assistant message cannot be thinking"
    if before:
        yield f"the request ends where results for {before} are due"


def _block(where: str, block: dict[str, Any], role: str) -> Iterator[str]:
    allowed = {
        "user": {"text", "image", "document", "tool_result"},
        "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
    }[role]
    kind = block["type"]
    if kind not in allowed:
        yield f"{where} may not have a block of type {kind!r}"
        return
    match kind:
        case "text":
            if _blank(block["text"]):
                yield f"{where} has a blank text"
        case "image" | "document":
            yield from _source(where, kind, block["source"])
        case "tool_use":
            yield from _call(where, block["id"], block["name"])
            if not isinstance(block["input"], dict):
                yield f"{where}: input must be an object, not {block['input']!r}"
        case "tool_result":
            if not _ID.fullmatch(block["tool_use_id"]):
                yield f"{where}: the provider refuses the call id {block['tool_use_id']!r}"
            if not block["content"]:
                yield f"{where} has an empty result"
            for part in block["content"]:
                if part["type"] == "text" and _blank(part["text"]):
                    yield f"{where} has a blank text in a result"
                elif part["type"] in {"image", "document"}:
                    yield from _source(where, part["type"], part["source"])
        case "thinking":
            if not block["signature"]:
                yield f"{where} has a thought without its signature"
        case _:
            pass


def _source(where: str, kind: str, source: dict[str, Any]) -> Iterator[str]:
    media = {"image": {"image/jpeg", "image/png", "image/gif", "image/webp"}, "document": {"application/pdf"}}[kind]
    match source["type"]:
        case "base64":
            if source["media_type"] not in media:
                yield f"{where}: base64 of {source['media_type']!r} is refused as {kind}"
            if not source["data"]:
                yield f"{where} has a {kind} without data"
        case "url":
            if not source["url"].startswith(("http://", "https://")):
                yield f"{where} has a {kind} without an address"
        case "text":
            if kind != "document" or source["media_type"] != "text/plain":
                yield f"{where}: a text source is for plain text documents"
        case _:
            yield f"{where}: there is no source of type {source['type']!r}"


def _marks(request: dict[str, Any]) -> Iterator[str]:
    marked = [block for block in flat_blocks(request) if "cache_control" in block]
    if len(marked) > 4:
        yield f"{len(marked)} blocks carry a cache mark, and 4 are allowed"
    for block in marked:
        if block.get("type") in {"thinking", "redacted_thinking"}:
            yield "a thought carries a cache mark"


def flat_blocks(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a Messages request in the order in which its provider caches them."""
    history = [block for message in request["messages"] for block in message["content"]]
    return [*request.get("tools", ()), *request.get("system", ()), *history]
