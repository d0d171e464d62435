"""What a single call asks for wins over the LLM, is sent where its wire has it, and is no part of the prompt."""

import json
import math
from typing import Any

import msgspec
import pytest
from tests.llm.paths import ALL_MODELS, CONTEXT, commit, manifest_for
from tests.llm.provider_rules import broken_rules

from forkpoint.errors import BadSetting
from forkpoint.events import Text, UserMessage
from forkpoint.llm import LLM, Models, Options
from forkpoint.llm.prompt.manifest import manifest_of
from forkpoint.llm.prompt.rendering import Rendering, render

all_wires = pytest.mark.parametrize("wire", list(ALL_MODELS))
HELLO = UserMessage((Text("hello"),))

SET: dict[str, Any] = {
    "max_tokens": 77,
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 11,
    "stop": ("END", "FIN"),
    "presence_penalty": 0.75,
    "frequency_penalty": -0.75,
    "logit_bias": '{"50256": -100}',
    "verbosity": "low",
    "service_tier": "flex",
}
"""Each setting that is sent as a field of its own, with a value that is no default."""

ALL = Options(**SET)

SENT: dict[str, dict[str, Any]] = {  # the fields of a request with all of them, as each provider documents them
    "chat": {
        "max_completion_tokens": 77,
        "temperature": 0.25,
        "top_p": 0.5,
        "seed": 11,
        "stop": ["END", "FIN"],
        "presence_penalty": 0.75,
        "frequency_penalty": -0.75,
        "logit_bias": {"50256": -100},
        "verbosity": "low",
        "service_tier": "flex",
    },
    "responses": {
        "max_output_tokens": 77,
        "temperature": 0.25,
        "top_p": 0.5,
        "text": {"verbosity": "low"},
        "service_tier": "flex",
    },
    "messages": {"max_tokens": 77, "stop_sequences": ["END", "FIN"]},
    "local": {
        "max_tokens": 77,
        "temperature": 0.25,
        "top_p": 0.5,
        "top_k": 5,
        "seed": 11,
        "stop": ["END", "FIN"],
        "presence_penalty": 0.75,
        "frequency_penalty": -0.75,
        "logit_bias": {"50256": -100},
    },
}
SENT["scripted"] = SENT["local"] | {"verbosity": "low", "service_tier": "flex"}

UNSENT: dict[Any, set[str]] = {
    "chat": {"top_k"},
    "responses": {"top_k", "seed", "stop", "presence_penalty", "frequency_penalty", "logit_bias"},
    "messages": SET.keys() - {"max_tokens", "stop"},  # its version 2026-10-21 refuses even temperature
    "local": {"verbosity", "service_tier"},
    "scripted": set(),
}


def prompt(wire: Any) -> Rendering:
    return render(manifest_for(wire), commit("t", HELLO))


def fields(wire: Any, options: Options, llm: LLM | None = None) -> dict[str, Any]:
    """What a request has more than one without options, or has otherwise."""
    plain = json.loads(prompt(wire).body(ALL_MODELS[wire], CONTEXT))
    made = json.loads(prompt(wire).body(llm or ALL_MODELS[wire], CONTEXT, options))
    return {name: value for name, value in made.items() if plain.get(name) != value}


# What is sent.


@all_wires
def test_each_wire_is_sent_what_it_has_a_place_for_and_nothing_else(wire: Any) -> None:
    assert fields(wire, ALL) == SENT[wire]
    assert set(ALL.unsent(wire)) == UNSENT[wire]
    assert not broken_rules(wire, prompt(wire).body(ALL_MODELS[wire], CONTEXT, ALL))


@all_wires
@pytest.mark.parametrize("name", SET)
def test_one_of_them_alone_is_sent_or_is_said_to_be_unsent(wire: Any, name: str) -> None:
    one = Options(**{name: SET[name]})
    assert one.unsent(wire) == ((name,) if name in UNSENT[wire] else ())
    assert bool(fields(wire, one)) is (name not in UNSENT[wire])
    assert len(fields(wire, one)) <= 1


@all_wires
def test_what_is_set_wins_over_the_llm_and_what_is_not_leaves_it(wire: Any) -> None:
    llm = msgspec.structs.replace(ALL_MODELS[wire], temperature=0.9, top_p=0.9, max_tokens=9)
    assert Options().over(llm) is llm
    made = Options(temperature=0, max_tokens=5).over(llm)
    warm = 0.9 if "temperature" in UNSENT[wire] else 0
    assert (made.temperature, made.top_p, made.max_tokens) == (warm, 0.9, 5)
    assert fields(wire, Options(temperature=0), llm)["temperature"] == warm
    assert ALL.over(llm).model == llm.model
    assert llm.temperature == 0.9


def test_the_form_of_the_answer_and_its_length_stand_in_one_field() -> None:
    llm = ALL_MODELS["responses"]
    rendering = render(manifest_of(llm, output='{"type":"object"}'), commit("t", HELLO))
    plain = json.loads(rendering.body(llm, CONTEXT))["text"]
    both = json.loads(rendering.body(llm, CONTEXT, Options(verbosity="high")))["text"]
    assert plain.keys() == {"format"}
    assert both == plain | {"verbosity": "high"}


def test_a_bias_is_sent_as_the_text_that_it_is() -> None:
    bias = '{ "1":\t-100,  "2": 1.50 }'
    assert bias.encode() in prompt("chat").body(ALL_MODELS["chat"], CONTEXT, Options(logit_bias=bias))


@all_wires
def test_none_of_them_changes_a_block_or_the_manifest(wire: Any) -> None:
    rendering = prompt(wire)
    plain, asked = rendering.body(ALL_MODELS[wire], CONTEXT), rendering.body(ALL_MODELS[wire], CONTEXT, ALL)
    end = plain.index(b"]", plain.index(b"hello"))
    assert asked[:end] == plain[:end]
    request = Models().request(ALL_MODELS[wire], rendering, CONTEXT, ALL)
    assert request.rendering is rendering
    assert manifest_of(ALL.over(ALL_MODELS[wire])).hash == manifest_of(ALL_MODELS[wire]).hash


# What can be said.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("top_p", math.nan),
        ("top_k", 1.5),
        ("seed", 1.5),
        ("seed", "x"),
        ("presence_penalty", math.inf),
        ("frequency_penalty", math.nan),
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("stop", (3,)),
        ("stop", ("\ud800",)),
        ("logit_bias", "[]"),
        ("logit_bias", "{"),
        ("logit_bias", '{"1": "x"}'),
        ("logit_bias", "{" * 100_000),
        ("logit_bias", "\ud800"),
        ("logit_bias", 3),
        ("verbosity", 3),
        ("verbosity", "\ud800"),
        ("service_tier", 3),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_nonsense_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(BadSetting, match=f"^{name} ") as refused:
        Options(**{name: value})
    assert refused.value.setting == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("temperature", 5),
        ("top_p", 0),
        ("top_p", 1),
        ("top_k", -1),
        ("seed", -1),
        ("seed", 2**62),
        ("presence_penalty", -9),
        ("stop", tuple("abcdefgh")),
        ("logit_bias", "{}"),
        ("verbosity", "verbose"),
        ("service_tier", "tomorrow"),
    ],
    ids=str,
)
def test_what_some_provider_might_take_is_for_it_to_judge(name: str, value: Any) -> None:
    made = Options(**{name: value})
    assert getattr(made, name) == value
    assert made.unsent("scripted") == ()
    assert fields("scripted", made)


@pytest.mark.parametrize("stop", ["END", ["END"], ("END",)], ids=str)
def test_one_text_to_stop_at_is_one(stop: Any) -> None:
    assert Options(stop=stop).stop == ("END",)


def test_what_is_not_set_is_not_unsent() -> None:
    assert all(Options().unsent(wire) == () for wire in UNSENT)
    assert Options(stop=()).sent("responses") == Options()
