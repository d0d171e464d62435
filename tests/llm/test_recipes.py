"""Each recipe of docs/recipes.md, asked for real: a recording server sees the path, the key and the body."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from forkpoint import Agent, Conversation
from forkpoint.llm.model import LLM
from forkpoint.testing import Fault, ModelServer, Reply, Script
from forkpoint.workspace.models.names import model_in

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
ROW = re.compile(r"^\| \w+ \| `(https://[^`]+)` \| `(\w+)` \| `([^`]+)` \|$", re.MULTILINE)


def recipes() -> dict[str, dict[str, Any]]:
    """The tables of the page by name, and those that its last table describes."""
    text = PAGE.read_text()
    found: dict[str, dict[str, Any]] = {}
    for block in re.findall(r"```toml\n(.*?)```", text, re.DOTALL):
        found |= tomllib.loads(block)["models"]
    for url, variable, model in ROW.findall(text):
        found[variable.lower()] = {"model": model, "base_url": url, "api_key_env": variable}
    return found


RECIPES = recipes()


def asked(name: str) -> str:
    """The name that the server is asked for: without what says how it is asked."""
    model: str = RECIPES[name]["model"]
    return re.sub(r"^(openai|anthropic)/", "", model)


def test_the_page_has_all_that_it_should() -> None:
    assert {"ollama", "vllm", "llamacpp", "lmstudio", "openrouter", "gemini", "azure", "bedrock", "vertex"} <= set(
        RECIPES
    )
    assert len(RECIPES) == 14
    for name, table in RECIPES.items():
        assert not table["base_url"].endswith(("/", "/messages", "/completions")), name


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_sends_what_it_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = model_in(RECIPES, name, PAGE)
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, "sk-of-another-company")
    if llm.api_key_env is not None:
        monkeypatch.setenv(llm.api_key_env, "k-4711")
    with ModelServer(Script([Reply("Blue.")])) as server:
        there = llm.replace(base_url=server.root if llm.wire == "messages" else server.url)
        with Conversation(Agent(there), store="memory:") as talk:
            assert talk.run("Why is the sky blue?").text == "Blue."
        sent = server.last
    assert (sent.path, sent.model) == (PATHS[llm.wire], asked(name))
    assert sent.header("authorization") == (None if llm.api_key_env is None else "Bearer k-4711")
    assert (sent.header("x-api-key"), sent.header("api-key")) == (None, None)
    for header, value in llm.headers:
        assert sent.header(header) == value
    body = sent.json
    assert body["stream"] is True
    assert ("prompt_cache_key" in body) == (llm.wire != "messages" and llm.cache_key != "never")
    assert ("cache_salt" in body) == llm.cache_salt
    assert ("messages" in body) != (llm.wire == "responses")


def test_a_server_that_refuses_the_cache_key_is_asked_again_without_it() -> None:
    llm = LLM("mistral-large-latest", base_url="http://127.0.0.1:1/v1")
    refuses = Reply("Blue.", fault=Fault("refuses_cache_key"))
    with ModelServer(Script([refuses], repeat=True)) as server:
        with Conversation(Agent(llm.replace(base_url=server.url)), store="memory:") as talk:
            assert talk.run("Why is the sky blue?").text == "Blue."
        assert ["prompt_cache_key" in one.json for one in server.requests] == [True, False]
