"""The rules for requests beside a conversation: a sample of each request, and what only looks like one.

The samples have the form in which the clients send them: their first words, their headings and their last line, which
the rules compare, are the clients' own; what stands between is in other words.
"""

from typing import Any, get_args

import msgspec
import pytest
from tests.server.chat.chatting import system, user

from forkpoint.server.settings import ServerSettings, SideClient
from forkpoint.server.wires.chat.request import read_request
from forkpoint.server.wires.chat.side_rules import RULES, SideRules

HISTORY = "<chat_history>\nUSER: How do I peel a mango?\nASSISTANT: With a spoon.\n</chat_history>"


def webui(begins: str, output: str, *, ends: str = HISTORY) -> str:
    """A prompt of Open WebUI: a task, guidelines, the form of the output, and the chat."""
    return f"### Task:\n{begins}\n### Guidelines:\n- Be brief.\n### Output:\n{output}\n### Chat History:\n{ends}"


AUTOCOMPLETE = (
    "### Task:\nYou are an autocompletion system. Go on with the text.\n### **Examples**:\n<type>General</type>\n---\n"
    f"### Context:\n{HISTORY}\n<type>search query</type>  \n<text>how to</text>  \n#### Output:\n"
)
LIBRE = (
    "Provide a concise, 5-word-or-less title for the conversation, in its own language, and only return the title "
    "itself.\n\nConversation:\nUser: How do I peel a mango?\nAI: With a spoon."
)
LANGUAGE = (
    "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title in that "
    "language (5 words or less, plain)\n\nUser: How do I peel a mango?"
)
OPENCODE = "You are a title generator. You output ONLY a thread title. Nothing else.\n\nKeep it short."

SAMPLES: list[tuple[str, str, list[dict[str, Any]], dict[str, str]]] = [
    (
        "open-webui",
        "title",
        [user(webui("Generate a concise, 3-5 word title with an emoji.", 'JSON format: { "title": "..." }'))],
        {},
    ),
    (
        "open-webui",
        "title",
        [user(webui("Generate a concise title of the chat.", 'JSON format: { "title": "..." }'))],
        {},
    ),
    (
        "open-webui",
        "tags",
        [user(webui("Generate 1-3 broad tags for the chat.\n", 'JSON format: { "tags": ["a"] }\n'))],
        {},
    ),
    (
        "open-webui",
        "follow-ups",
        [user(webui("Suggest 3-5 relevant follow-up questions or prompts.", 'JSON format: { "follow_ups": ["?"] }'))],
        {},
    ),
    (
        "open-webui",
        "queries",
        [
            user(
                webui(
                    "Analyze the chat history to determine the necessity of generating search queries, if any.",
                    'Strictly in JSON: { "queries": ["q"] }',
                    ends=HISTORY + "\n",
                )
            )
        ],
        {},
    ),
    ("open-webui", "autocompletion", [user(AUTOCOMPLETE)], {}),
    (
        "open-webui",
        "image prompt",
        [user(webui("Generate a detailed prompt for an image.", '{\n    "prompt": "..."\n}\n'))],
        {},
    ),
    ("open-webui", "task", [user("A title in Latin, please: mango.")], {"X-OpenWebUI-Task": "title_generation"}),
    (  # which tools to call, asked in words, before the request that answers the user
        "open-webui",
        "task",
        [system("Available Tools: []"), user('Query: History:\nUSER: """Peel a mango"""\nQuery: Peel a mango')],
        {"X-OpenWebUI-Task": "function_calling"},
    ),
    ("librechat", "title", [user(LIBRE)], {}),
    ("librechat", "title", [system(LIBRE)], {}),
    ("librechat", "title and language", [user(LANGUAGE)], {}),
    (
        "opencode",
        "title",
        [system(OPENCODE), user("Generate a title for this conversation:\n"), user("Peel a mango")],
        {},
    ),
]

NEARLY: list[tuple[list[dict[str, Any]], dict[str, str]]] = [
    ([user("### Task:\nGenerate a concise title for my talk on mangos.")], {}),
    ([user(webui("Generate a concise title.", 'JSON format: { "title": "..." }') + "\nWhat does this prompt do?")], {}),
    ([user("What is this?\n" + webui("Generate a concise title.", 'JSON format: { "title": "..." }'))], {}),
    ([user("one"), user(webui("Generate a concise title.", 'JSON format: { "title": "..." }'))], {}),
    ([user("Provide a concise, 5-word-or-less title for the conversation that we just had.")], {}),
    ([system(OPENCODE), user("Peel a mango")], {}),
    ([system("Be kind."), user("Generate a title for this conversation:\n"), user("Peel a mango")], {}),
    ([user("one")], {"X-OpenWebUI-Task": ""}),
    ([user("one")], {"X-OpenWebUI-Task": "{{TASK}}"}),
    ([user("one")], {"X-OpenWebUI-Task": "something_new"}),
]


def found(rules: SideRules, messages: list[dict[str, Any]], headers: dict[str, str]) -> tuple[str, str] | None:
    body = msgspec.json.encode({"model": "helper", "messages": messages})
    rule = rules.find(read_request(body, strict=True).messages, headers)
    return None if rule is None else (rule.client, rule.asks)


@pytest.mark.parametrize(
    ("client", "asks", "messages", "headers"), SAMPLES, ids=lambda one: one if isinstance(one, str) else ""
)
def test_a_request_of_a_known_client_is_recognised_by_its_own_rule_alone(
    client: SideClient, asks: str, messages: list[dict[str, Any]], headers: dict[str, str]
) -> None:
    assert found(SideRules(ServerSettings().side_rules), messages, headers) == (client, asks)
    assert found(SideRules([client]), messages, headers) == (client, asks)
    others = [one for one in get_args(SideClient) if one != client]
    assert found(SideRules(others), messages, headers) is None
    assert found(SideRules([]), messages, headers) is None


@pytest.mark.parametrize("parts", [False, True], ids=["text", "parts"])
def test_the_content_may_be_a_list_of_parts(parts: bool) -> None:
    content = [{"type": "text", "text": LIBRE}] if parts else LIBRE
    assert found(SideRules(["librechat"]), [user(content)], {}) == ("librechat", "title")


@pytest.mark.parametrize(("messages", "headers"), NEARLY)
def test_what_only_looks_like_such_a_request_is_a_turn(messages: list[dict[str, Any]], headers: dict[str, str]) -> None:
    assert found(SideRules(get_args(SideClient)), messages, headers) is None


def test_every_rule_has_a_sample_and_two_features() -> None:
    assert {(rule.client, rule.asks) for rule in RULES} == {(client, asks) for client, asks, _, _ in SAMPLES}
    assert {rule.client for rule in RULES} == set(get_args(SideClient)) == set(ServerSettings().side_rules)
    for rule in RULES:
        features = [rule.begins, rule.ends, rule.system, *rule.has]
        assert rule.header is not None or sum(map(bool, features)) >= 2, rule
