"""A server's settings: what cannot be meant is refused when they are made."""

import math
from typing import Any

import pytest

from forkpoint.errors import BadArgument
from forkpoint.server.settings import ConversationHeader, ServerSettings


@pytest.mark.parametrize("name", ["X-Conversation-Id", "X-OpenWebUI-Chat-Id", "session_id", "chat", "x.y!z", "X" * 128])
def test_a_header_of_any_other_name_may_name_conversations(name: str) -> None:
    assert ServerSettings(conversation_headers=(ConversationHeader(name),)).conversation_headers[0].name == name


@pytest.mark.parametrize(
    "name", ["", " ", "X-Chat ", "X Chat", "X-Chat:", "X-Chat=1", "X-Chät", "*", "-", "a\r\nb", "a\n", "X" * 129]
)
def test_what_is_no_name_of_a_header_names_no_conversations(name: str) -> None:
    with pytest.raises(BadArgument, match="it is not the name of an HTTP header"):
        ConversationHeader(name)


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "authorization", "Content-Type", "content-length", "Host", "Accept", "Accept-Encoding"),
        *("Connection", "Transfer-Encoding", "Expect", "Upgrade", "Cookie", "Set-Cookie", "Origin", "User-Agent"),
        *("Idempotency-Key", "If-Match", "Last-Event-ID", "Prefer", "traceparent", "X-Forwarded-For"),
        *("X-Request-Id", "X-Conversation-Create", "X-Conversation-History", "X-Fork-From", "x-stainless-retry-count"),
        *("X-Conversation-Status", "X-Turn-Id", "X-Ignored-Fields", "x-should-retry", "Retry-After"),
        *("ETag", "Location", "Vary", "Date", "Access-Control-Allow-Origin"),
    ],
)
def test_a_header_that_means_something_else_to_or_fro_names_no_conversations(name: str) -> None:
    with pytest.raises(BadArgument, match="this header has another meaning already"):
        ConversationHeader(name)


@pytest.mark.parametrize(("text", "history"), [("X-Chat", None), ("X-Chat=full", "full"), ("X-Chat=latest", "latest")])
def test_a_header_in_one_text_has_its_name_and_how_lists_are_read(text: str, history: Any) -> None:
    assert ConversationHeader.from_text(text) == ConversationHeader("X-Chat", history)


@pytest.mark.parametrize("text", ["X-Chat=", "X-Chat=all", "X-Chat=full=full", "=full", ""])
def test_a_text_that_is_not_a_header_is_refused(text: str) -> None:
    with pytest.raises(BadArgument):
        ConversationHeader.from_text(text)


def test_a_header_is_named_once_however_it_is_written() -> None:
    with pytest.raises(BadArgument, match="twice"):
        ServerSettings(conversation_headers=(ConversationHeader("X-Chat"), ConversationHeader("x-chat", "full")))


@pytest.mark.parametrize(
    "wrong",
    [
        *({"request_timeout": value} for value in (0, -1.0, math.nan, math.inf)),
        *({"conversations_max": value} for value in (0, -5)),
        *({name: value} for name in ("conversation_ttl", "grace") for value in (-0.1, math.nan, math.inf)),
        *({name: 0} for name in ("heartbeat", "poll", "buffer", "max_messages", "max_turns", "max_streams")),
        *({name: 0} for name in ("max_turns_per_tenant", "max_streams_per_tenant")),
        {"max_body": 1023},
        {"max_turns": True},
        {"metrics": "everybody"},
    ],
    ids=str,
)
def test_a_value_that_a_setting_cannot_have_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadArgument) as refused:
        ServerSettings(**wrong)
    assert name in refused.value.argument
