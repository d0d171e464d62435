"""An output that is only a JSON schema: the model is told it, the answer is checked by it, and no schema does harm."""

import dataclasses
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.importable import Address, Household, Options, Person, Tree

from forkpoint import AsyncConversation
from forkpoint.agent import Agent
from forkpoint.agent.arguments import decode_as, json_schema
from forkpoint.agent.output import DEPTH, PARTS, PATTERN, PATTERNS, REPEATS, SIZE, OutputSchema, _validator
from forkpoint.errors import BadAgent, BadOutput, ExtraMissing, TurnFailed
from forkpoint.testing import Reply, Script

ECHO = "scripted/echo"
POINT = '{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],"additionalProperties":false}'


def refused(schema: Any) -> str:
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    with pytest.raises(BadAgent) as error:
        OutputSchema("Form", text)
    return error.value.why


def told(schema: Any, answer: str) -> str:
    text = schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()
    with pytest.raises(ValueError) as error:
        OutputSchema("Form", text).decode(answer)
    return str(error.value)


# In an agent.


def test_the_model_is_told_the_schema_as_it_is() -> None:
    schema = '{ "type": "object" }'
    assert Agent(ECHO, output=OutputSchema("Form", schema)).manifest.output == schema


@pytest.mark.anyio
async def test_the_output_of_a_turn_is_the_plain_value(tmp_path: Path) -> None:
    model = Script([Reply('{"x":1}')]).register("output-plain")
    agent = Agent(model, output=OutputSchema("Point", POINT))
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
        turn = await conversation.run("go")
    assert turn.output == {"x": 1}


@pytest.mark.anyio
async def test_an_answer_that_does_not_fit_is_corrected_by_the_model(tmp_path: Path) -> None:
    heard: list[str] = []

    def reply(call: Any) -> Reply:
        heard.append(msgspec.json.encode(call.body).decode())
        return Reply('{"x":"one"}' if len(heard) == 1 else '{"x":1}')

    agent = Agent(Script(reply).register("output-corrected"), output=OutputSchema("Point", POINT))
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
        turn = await conversation.run("go")
    assert turn.output == {"x": 1}
    assert "'one' is not of type 'integer' - at `$.x`" in heard[1]


@pytest.mark.anyio
async def test_an_answer_that_never_fits_fails_the_turn(tmp_path: Path) -> None:
    model = Script([Reply("no")], repeat=True).register("output-never")
    agent = Agent(model, output=OutputSchema("Point", POINT))
    async with AsyncConversation(agent, store=f"sqlite:///{tmp_path}/a.db") as conversation:
        with pytest.raises(TurnFailed) as failed:
            await conversation.run("go")
    assert isinstance(failed.value.cause, BadOutput)


# What fits.


@pytest.mark.parametrize("output", [Person, Address, Household, Options, Tree], ids=lambda one: one.__name__)
def test_the_schema_of_a_type_refuses_what_the_type_refuses(output: Any) -> None:
    schema = OutputSchema("Form", json_schema(output))
    for text in ("[]", "3", "null", '"x"'):
        for kind in (output, schema):
            with pytest.raises(ValueError):
                decode_as(kind, text)


def test_the_schema_of_a_type_takes_what_the_type_takes() -> None:
    schema = OutputSchema("Person", json_schema(Person))
    assert decode_as(Person, '{"name":"Ann"}') == Person("Ann")
    assert decode_as(schema, '{"name":"Ann"}') == {"name": "Ann"}


def test_older_drafts_are_read_by_their_own_rules() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"pair": {"items": [{"type": "integer"}, {"type": "string"}]}},
        "properties": {"pair": {"$ref": "#/definitions/pair"}},
    }
    assert "$.pair[1]" in told(schema, '{"pair":[1,2]}')


def test_references_within_the_schema_are_followed() -> None:
    tree = {"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"next": {"$ref": "#/$defs/T"}, "n": {"type": "null"}}}}}
    assert "$.next.next.n" in told(tree, '{"next":{"next":{"n":1}}}')


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"pattern": "^a+$"}, '"aa"', '"ab"'),
        ({"patternProperties": {"^n": {"type": "integer"}}}, '{"n":1,"m":"x"}', '{"n":"x"}'),
        ({"patternProperties": {"^n": {}}, "additionalProperties": False}, '{"n1":1}', '{"m":1}'),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, '{"a":"x","b":1}', '{"b":"x"}'),
        ({"uniqueItems": True}, '[1,true,"1",[1],{"a":1},{"a":2}]', "[1,1.0]"),
        ({"uniqueItems": True}, "[]", '[{"a":1,"b":2},{"b":2,"a":1}]'),
        ({"uniqueItems": False}, "[1,1]", None),
        ({"pattern": "^a"}, "3", None),
        ({"uniqueItems": True}, '"aa"', None),
        ({"additionalProperties": False}, "[1]", None),
        ({"patternProperties": {"a": False}}, "[1]", None),
    ],
    ids=str,
)
def test_keywords_with_a_check_of_our_own_mean_what_they_say(schema: Any, good: str, bad: str | None) -> None:
    one = OutputSchema("Form", msgspec.json.encode(schema).decode())
    assert one.decode(good) == msgspec.json.decode(good)
    if bad is not None:
        with pytest.raises(ValueError):
            one.decode(bad)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\w+$", ["aZ_09"], ["é", "\u0660", "-", "\u212a"]),
        (r"^\d+$", ["0123456789"], ["\u0660", "\u0967", "a"]),
        (r"^\W$", ["é", "-", "\u0660"], ["a", "_", "0"]),
        (r"^\D$", ["é", "a", "\u0660"], ["5"]),
        (r"^[\w-]+$", ["a-_0"], ["é", "a b"]),
        (r"^[^\d]$", ["a", "\u0660"], ["5"]),
        (r"^[\d\w.]+$", ["a.5"], ["é", "["]),
        (r"\bcat\b", ["a cat!", "écat"], ["concat", "cats"]),
        (r"^[[&~]+$", ["[", "&&", "~~"], ["a", "]"]),  # to its engine these would be operators
        (r"^[a-z&&b]+$", ["a", "b&"], ["A"]),
        (r"^[a\]]+$", ["a]"], ["b"]),
        (r"^\\w$", [r"\w"], ["a", r"\a"]),  # a backslash, and then a letter
        (r"^[(?i)]+$", ["(?i)"], ["I"]),  # within brackets it is no flag
        (r"^(?:a|b)(?<name>c)(?P<other>d)$", ["acd"], ["ad"]),
        (r"^é$", ["é"], ["e"]),
    ],
)
def test_patterns_match_what_json_schemas_mean_with_ascii_for_letters_and_digits(
    pattern: str, good: list[str], bad: list[str]
) -> None:
    one = OutputSchema("Form", msgspec.json.encode({"pattern": pattern}).decode())
    for text in good:
        assert one.decode(msgspec.json.encode(text).decode()) == text
    for text in bad:
        with pytest.raises(ValueError, match="does not match"):
            one.decode(msgspec.json.encode(text).decode())


@pytest.mark.parametrize("answer", ["", "no", "{", '{"x":1} and more', "\ud800", "[" * 100_000, "NaN"], ids=ascii)
def test_what_is_not_json_is_told_so(answer: str) -> None:
    assert "it is not JSON" in told(POINT, answer)


# Schemas that are refused.


@pytest.mark.parametrize("schema", ["", "no", "[]", "true", "3", '"x"', "\ud800", '{"a":', "[" * 10_000], ids=ascii)
def test_what_is_no_object_is_no_schema(schema: str) -> None:
    assert "'Form'" in refused(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"properties": []},
        {"required": "x"},
        {"required": ["x", "x"]},
        {"pattern": "["},
        {"pattern": 3},
        {"minLength": -1},
        {"$schema": "https://example.org/my-own"},
        {"$schema": 3},
        {"$schema": []},
    ],
    ids=str,
)
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    assert "'Form'" in refused(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.org/schema.json"},
        {"$ref": "http://127.0.0.1:9/x"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$dynamicRef": "https://example.org/x"},
        {"properties": {"const": {"$ref": "http://127.0.0.1:9/x"}}},
        {"anyOf": [{"items": {"$ref": "http://127.0.0.1:9/x"}}]},
        {"$defs": {"enum": {"$ref": "http://127.0.0.1:9/x"}}},
    ],
    ids=str,
)
def test_a_reference_that_leads_elsewhere_is_refused(schema: Any) -> None:
    assert "leads elsewhere" in refused(schema)


def test_a_reference_that_is_hidden_in_a_value_is_not_fetched() -> None:
    """`#/const` is no place for a schema, but it can be referred to."""
    schema = {"$ref": "#/const", "const": {"$ref": "http://127.0.0.1:9/x"}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "cannot check" in told(schema, "{}")


def test_what_only_looks_like_a_reference_is_let_be() -> None:
    schema = {"const": {"$ref": "https://example.org/x"}}
    value = '{"$ref":"https://example.org/x"}'
    assert OutputSchema("Form", msgspec.json.encode(schema).decode()).decode(value) == msgspec.json.decode(value)
    OutputSchema("Form", '{"properties":{"$ref":{"type":"string"},"$id":{"type":"string"}}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nowhere"},
        {"$ref": "#nowhere"},
        {"properties": {"a": {"$id": "https://example.org/a"}}},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}},
        {"const": {"$schema": "http://json-schema.org/draft-07/schema#"}, "$ref": "#/const"},
        {"pattern": "(?=a)b"},
        {"pattern": r"(a)\1"},
        {"patternProperties": {"(?<=x)": {}}},
        {"patternProperties": {"x": {}}, "unevaluatedProperties": False},
    ],
    ids=str,
)
def test_what_cannot_be_checked_safely_is_refused(schema: Any) -> None:
    assert "'Form'" in refused(schema)


def test_schemas_have_limits() -> None:
    assert "bytes" in refused({"description": "x" * SIZE})
    assert "nested" in refused('{"not":' * DEPTH + "{}" + "}" * DEPTH)
    assert "objects" in refused({"anyOf": [{}] * PARTS})


def test_a_schema_has_so_many_patterns_and_no_more() -> None:
    parts = {f"p{n}": {"pattern": f"^a{n}"} for n in range(PATTERNS - 1)}
    most = {"properties": parts, "patternProperties": {"^x": {}}}
    OutputSchema("Form", msgspec.json.encode(most).decode())
    assert f"more than {PATTERNS} patterns" in refused(most | {"pattern": "^one more"})
    assert f"more than {PATTERNS} patterns" in refused(most | {"patternProperties": {"^x": {}, "^y": {}}})


@pytest.mark.parametrize("at", ["pattern", "patternProperties"])
def test_a_pattern_has_so_many_characters_and_no_more(at: str) -> None:
    def schema(pattern: str) -> dict[str, Any]:
        return {at: pattern if at == "pattern" else {pattern: {}}}

    OutputSchema("Form", msgspec.json.encode(schema("a" * PATTERN)).decode())
    assert f"more than {PATTERN} characters" in refused(schema("a" * (PATTERN + 1)))


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ([f"a{{{REPEATS}}}"], [f"a{{{REPEATS + 1}}}"]),
        ([f"a{{{REPEATS},}}"], [f"a{{{REPEATS + 1},}}"]),
        ([f"a{{0,{REPEATS}}}"], [f"a{{0,{REPEATS + 1}}}"]),
        (["(a{20}){10}"], ["(a{20}){11}"]),  # one within the other: they multiply
        (["a{100}", "b{100}"], ["a{100}", "b{101}"]),  # all patterns of a schema together
        (["(a*)*b+"], ["a{999999999}"]),
    ],
    ids=str,
)
def test_the_counted_repetitions_of_patterns_have_a_limit(most: list[str], more: list[str]) -> None:
    OutputSchema("Form", msgspec.json.encode({"allOf": [{"pattern": one} for one in most]}).decode())
    said = refused({"allOf": [{"pattern": one} for one in more]})
    assert f"more than {REPEATS} repetitions" in said
    assert "use * or +, or maxLength" in said


@pytest.mark.parametrize(
    "pattern",
    [
        *("(?i)a", "a(?i:b)", "(?s).", "(?x) a", "(?-u:a)", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)", "(?#a)"),
        *(r"\p{L}", r"\P{L}", r"[\p{L}]", r"[^\P{L}]", r"\pL", r"\B", r"[\W]", r"[^\D]", r"(a)\1"),
    ],
)
def test_what_patterns_of_json_schemas_do_not_have_or_what_costs_too_much_is_refused(pattern: str) -> None:
    assert "cannot be used" in refused({"pattern": pattern})
    assert "cannot be used" in refused({"patternProperties": {pattern: {}}})


@pytest.mark.parametrize("fields", [{"name": ""}, {"name": "x" * 257}, {"name": 3}, {"name": "\ud800"}, {"schema": {}}])
def test_a_name_and_a_schema_are_texts(fields: dict[str, Any]) -> None:
    with pytest.raises(BadAgent):
        OutputSchema(**({"name": "Form", "schema": "{}"} | fields))


# Schemas and answers that mean harm.


def test_a_small_schema_cannot_be_endless_work() -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    laughs = {"$ref": "#/$defs/d0", "$defs": doubling | {"d40": {}}}
    assert "too much work" in told(laughs, "{}")
    assert OutputSchema("Point", POINT).decode('{"x":1}') == {"x": 1}, "the next check has all its work before it"


def test_a_reference_without_an_end_is_told_and_not_followed() -> None:
    assert "cannot check" in told({"$ref": "#"}, "{}")


def test_a_pattern_cannot_take_time_without_end() -> None:
    """With an engine that goes back and tries again, this would take longer than anybody lives."""
    assert "does not match" in told({"pattern": "^(a+)+$"}, msgspec.json.encode("a" * 100_000 + "!").decode())
    named = {"patternProperties": {"^(a+)+$": False}, "additionalProperties": {"type": "null"}}
    OutputSchema("Form", msgspec.json.encode(named).decode()).decode('{"' + "a" * 5_000 + '!":null}')


def test_patterns_are_refused_before_anybody_compiles_what_takes_long() -> None:
    """Python's own engine takes ten seconds for either of them."""
    wide = "[!-\U0010ffff]"
    started = time.process_time()
    assert f"more than {PATTERN} characters" in refused({"pattern": "(?i)" + wide * 1_200})
    assert "cannot be used" in refused({"allOf": [{"pattern": f"(?i){n}" + wide * 38} for n in range(30)]})
    assert time.process_time() - started < 5


def test_a_long_answer_cannot_take_time_without_end() -> None:
    items = msgspec.json.encode([{"n": n} for n in range(50_000)]).decode()
    assert len(OutputSchema("Form", '{"uniqueItems":true}').decode(items)) == 50_000
    many = {"items": {"enum": list(range(5_000))}}
    assert "too much work" in told(many, msgspec.json.encode([-1] * 50_000).decode())
    assert "nested" in told({}, "[" * 100 + "]" * 100)


def test_what_is_told_of_a_wrong_answer_is_short() -> None:
    assert len(told({"type": "integer"}, msgspec.json.encode("x" * 100_000).decode())) < 1_200


# Installed without the extra.


def test_without_the_extra_it_says_which_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    _validator.cache_clear()
    for module in ("jsonschema", "jsonschema.validators"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExtraMissing) as error:
        OutputSchema("Form", POINT)
    assert error.value.extra == "server"


def test_it_is_frozen_data() -> None:
    one = OutputSchema("Point", POINT)
    assert one == OutputSchema("Point", POINT)
    assert hash(one) == hash(OutputSchema("Point", POINT))
    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
        one.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^[\w-.]+@[\w-\.]+$", ["a-b.c@d-e.f"], ["a`@b", "a@b/"]),
        (r"^[+-\d]+$", ["+1-2"], [",", "."]),
        (r"^[\d-z]+$", ["1-z"], ["a", ":"]),
        (r"^[a-z-\d]+$", ["b-5"], ["_"]),
        (r"^[\s-]+$", [" -"], ["a"]),
    ],
)
def test_a_dash_beside_a_class_is_a_dash_and_no_range(pattern: str, good: list[str], bad: list[str]) -> None:
    one = OutputSchema("Form", msgspec.json.encode({"pattern": pattern}).decode())
    for text in good:
        assert one.decode(msgspec.json.encode(text).decode()) == text
    for text in bad:
        with pytest.raises(ValueError, match="does not match"):
            one.decode(msgspec.json.encode(text).decode())


@pytest.mark.parametrize("pattern", ["[+--]", "[--/]", "[a-z--c]"])
def test_two_dashes_in_brackets_are_refused(pattern: str) -> None:
    assert "-- is not supported" in refused({"pattern": pattern})


@pytest.mark.parametrize("count", ["{ 8000 }", "{\t8000}", "{ 1, 8000 }", "{8000 ,}", "{" + "0" * 30 + "8000}"])
def test_repetitions_are_counted_however_they_are_written(count: str) -> None:
    assert f"more than {REPEATS} repetitions" in refused({"pattern": f"[a-z]{count}"})
