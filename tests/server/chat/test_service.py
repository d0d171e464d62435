"""Names of models: which agent a client means, and what it is shown."""

import pytest

from forkpoint.agent import Agent
from forkpoint.errors import NotFound
from forkpoint.llm.model import LLM
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.wires.answerers import ModelNames

AWAY = "http://127.0.0.1:9/v1"


def names(default: str | None = None, /, **models: str) -> ModelNames:
    """The names of agents that have these models; ``_`` in an agent's name is a colon."""
    agents = {
        agent.replace("_", ":"): Agent(LLM(model, base_url=AWAY if model.startswith("openai/") else None))
        for agent, model in models.items()
    }
    return ModelNames(Catalog(agents, default=default))


def ids(of: ModelNames) -> list[str]:
    return [one["id"] for one in of.listed()]


def test_an_agent_is_found_by_its_name_and_once_more_on_the_side() -> None:
    found = names(support="openai/gpt-5.6", review="scripted/echo")
    assert found.find("support") == ("support", False)
    assert found.find("review") == ("review", False)
    assert found.find("support:side") == ("support", True)
    assert found.find("review:side") == ("review", True)


@pytest.mark.parametrize("asked", ["gpt-5.6", "openai/gpt-5.6"])
def test_a_model_is_whoever_has_it_with_its_provider_or_without(asked: str) -> None:
    found = names(review="scripted/echo", support="openai/gpt-5.6")
    assert found.find(asked) == ("support", False)
    assert found.find(f"{asked}:side") == ("support", True)


def test_a_model_whose_name_has_slashes_and_colons_is_found_as_a_whole() -> None:
    found = names(a="openai/Qwen/Qwen3-8B", b="openai/llama3:8b")
    assert found.find("Qwen/Qwen3-8B") == found.find("openai/Qwen/Qwen3-8B") == ("a", False)
    assert found.find("llama3:8b:side") == found.find("openai/llama3:8b:side") == ("b", True)
    for none in ("Qwen3-8B", "Qwen", "openai", "llama3", "8b"):
        with pytest.raises(NotFound, check=NotFound.model_not_found.made):
            found.find(none)


def test_of_several_with_one_model_the_default_wins_and_else_the_first() -> None:
    models = {"a": "scripted/echo", "b": "openai/big", "c": "openai/big"}
    assert names("c", **models).find("big") == ("c", False)
    assert names("c", **models).find("openai/big:side") == ("c", True)
    assert names("a", **models).find("big") == ("b", False)
    assert names("a", **models).find("openai/big:side") == ("b", True)


def test_a_plain_name_of_two_providers_is_the_default_agents_and_each_is_found_with_its_provider() -> None:
    found = names("b", a="openai/echo", b="scripted/echo")
    assert found.find("echo") == ("b", False)
    assert found.find("openai/echo") == ("a", False)
    assert found.find("scripted/echo:side") == ("b", True)


def test_an_agent_that_is_called_like_a_model_wins_over_it() -> None:
    found = names("other", other="openai/big", big="scripted/echo")
    assert found.find("big") == ("big", False)
    assert found.find("big:side") == ("big", True)
    assert found.find("openai/big") == ("other", False)
    assert found.find("openai/big:side") == ("other", True)


def test_an_agent_that_is_called_like_the_side_of_another_is_meant_by_its_name() -> None:
    for models in ({"a": "openai/x", "a_side": "openai/y"}, {"a_side": "openai/y", "a": "openai/x"}):
        found = names("a", **models)
        assert found.find("a") == ("a", False)
        assert found.find("a:side") == ("a:side", False)
        assert found.find("a:side:side") == ("a:side", True)
        assert found.find("x:side") == ("a", True), "its side is there under the name of its model"
        assert sorted(ids(found)) == ["a", "a:side", "a:side:side", "x", "x:side", "y", "y:side"]


def test_a_model_that_is_called_like_a_side_takes_nothing_from_an_agent() -> None:
    found = names(a="openai/x", b="openai/a:side")
    assert found.find("a:side") == ("a", True)
    assert found.find("openai/a:side") == ("b", False)
    assert ids(found) == ["a", "a:side", "b", "b:side", "x", "x:side"]
    both = names(a="openai/x", b="openai/x:side")
    assert both.find("x:side") == ("b", False), "a model of this name comes before the side of another"
    assert both.find("x:side:side") == ("b", True)


@pytest.mark.parametrize(
    "asked", ["", ":side", "side", "Support", "support ", "support:side:side", "support:SIDE", "/"]
)
def test_a_name_that_nobody_has_is_refused(asked: str) -> None:
    found = names(support="openai/gpt-5.6")
    for ask in (found.find, found.one):
        with pytest.raises(NotFound, check=NotFound.model_not_found.made) as refused:
            ask(asked)
        assert refused.value.fields["model"] == asked


def test_a_long_name_is_cut_and_a_strange_one_is_quoted() -> None:
    with pytest.raises(NotFound, check=NotFound.model_not_found.made) as refused:
        names(a="scripted/echo").find("x" * 10_000)
    assert refused.value.fields["model"] == "x" * 200 + "..."
    with pytest.raises(NotFound, check=NotFound.model_not_found.made) as refused:
        names(a="scripted/echo").find("a\r\n\0\u202e")
    assert r"'a\r\n\x00\u202e'" in str(refused.value)


def test_the_list_has_each_agent_and_each_model_with_its_side_once_and_the_default_first() -> None:
    found = names("c", a="openai/big", b="openai/big", c="openai/c", d="openai/Qwen/Qwen3")
    agents = ["c", "c:side", "a", "a:side", "b", "b:side", "d", "d:side"]
    assert ids(found) == [*agents, "big", "big:side", "Qwen/Qwen3", "Qwen/Qwen3:side"]
    assert ids(found) == ids(found)
    for id in ids(found):
        assert found.one(id)["id"] == id
        assert found.find(id)[1] == id.endswith(":side")


def test_a_model_looks_as_openais_do_and_was_made_when_it_was_offered() -> None:
    times = iter([1_800_000_000_999_999])
    found = ModelNames(Catalog({"a": Agent("scripted/echo")}), clock=lambda: next(times))
    made = {"object": "model", "created": 1_800_000_000, "owned_by": "forkpoint"}
    assert found.listed() == [{"id": id} | made for id in ("a", "a:side", "echo", "echo:side")]
    assert found.one("scripted/echo") == {"id": "scripted/echo"} | made, "as it was asked for, though it is not listed"


def test_the_list_does_not_say_where_a_file_lies() -> None:
    found = names(a="local//srv/models/tiny.gguf")
    assert ids(found) == ["a", "a:side", "tiny.gguf", "tiny.gguf:side"]
    assert found.find("tiny.gguf") == found.find("local//srv/models/tiny.gguf") == ("a", False)
