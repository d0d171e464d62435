"""Examples of responses and conversations, as OpenAI's clients read them. Tests: tests/server/test_openapi.py."""

from typing import Any

_TURN = "01a8f6e06c327e5a8b234dbf807c6e9d"
_TEXT = {"type": "output_text", "text": "The disk was full.", "annotations": [], "logprobs": []}
_MESSAGE: dict[str, Any] = {
    "type": "message",
    "id": f"msg_{_TURN}_r1",
    "status": "completed",
    "role": "assistant",
    "content": [_TEXT],
}
_CONVERSATION = {
    "id": f"conv_{_TURN}",
    "created_at": 1_794_000_000,
    "metadata": {"team": "builds"},
    "object": "conversation",
}

RESPONSE_EXAMPLES: dict[str, Any] = {
    "ResponseRequest": {"model": "support", "input": "Why did build 1234 fail?", "instructions": "You are brief."},
    "ResponseDocument": {
        "id": f"resp_{_TURN}",
        "object": "response",
        "created_at": 1_794_000_000,
        "completed_at": 1_794_000_002,
        "status": "completed",
        "incomplete_details": None,
        "model": "support",
        "previous_response_id": None,
        "instructions": "You are brief.",
        "output": [_MESSAGE],
        "error": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": 1.0,
        "reasoning": None,
        "usage": {
            "input_tokens": 31,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 36,
        },
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": True,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        "conversation": None,
    },
    "ResponseDeleted": {"id": f"resp_{_TURN}", "object": "response", "deleted": True},
    "ItemList": {
        "data": [_MESSAGE],
        "first_id": f"msg_{_TURN}_r1",
        "last_id": f"msg_{_TURN}_r1",
        "has_more": False,
        "object": "list",
    },
    "ItemDocument": _MESSAGE,
    "NewOpenAIConversation": {"metadata": {"team": "builds"}},
    "OpenAIConversation": _CONVERSATION,
    "OpenAIConversationUpdate": {"metadata": {"team": "builds"}},
    "OpenAIConversationDeleted": {"id": f"conv_{_TURN}", "object": "conversation.deleted", "deleted": True},
    "NewItems": {"items": [{"type": "message", "role": "user", "content": "Why did build 1234 fail?"}]},
}
