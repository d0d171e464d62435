"""A function's types are its schema, and what a model writes either fits them or comes back as a sentence."""

import datetime
import decimal
import enum
import json
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.agent import importable
from tests.agent.importable import Address, Colour, Household, Options, Person, Point, Tree

from forkpoint.agent.arguments import Arguments, BadArguments, decode_as, json_schema
from forkpoint.errors import BadTool

some = settings(max_examples=60, deadline=None, database=None)


class Nothing:
    """Stands for an annotation that is not there, by a name that is the same in every process."""

    def __str__(self) -> str:
        return "no annotation"


EMPTY: Any = Nothing()


def of(kind: Any = EMPTY, default: Any = EMPTY, doc: str | None = None) -> Arguments:
    """The arguments of a function with one parameter."""

    def function(x):  # type: ignore[no-untyped-def]
        pass

    function.__doc__ = doc
    if kind is not EMPTY:
        function.__annotations__["x"] = kind
    if default is not EMPTY:
        function.__defaults__ = (default,)
    return Arguments("function", function)


def read(kind: Any, text: str) -> Any:
    return of(kind).read(f'{{"x":{text}}}')["x"]


def schema_of(arguments: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(arguments.schema)
    return found


def x_of(arguments: Arguments) -> dict[str, Any]:
    found: dict[str, Any] = schema_of(arguments)["properties"]["x"]
    return found


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Circle(msgspec.Struct, tag="circle", frozen=True):
    radius: float


class Square(msgspec.Struct, tag="square", frozen=True):
    side: float


T = TypeVar("T")


class Page(msgspec.Struct, Generic[T]):
    items: list[T]
    following: int | None = None


class Folder(pydantic.BaseModel):
    folders: "list[Folder]" = []


UserId = NewType("UserId", int)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(10**25), 10**25)
floats = st.floats(allow_nan=False, allow_infinity=False)
people = st.builds(Person, texts, st.integers(0, 99))
trees: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, st.integers(0, 9)),
    lambda inner: st.builds(Tree, st.integers(0, 9), st.lists(inner, max_size=2)),
    max_leaves=5,
)

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {  # each kind of annotation, and values that it takes
    "str": (str, texts),
    "int": (int, numbers),
    "float": (float, floats),
    "bool": (bool, st.booleans()),
    "None": (None, st.none()),
    "NoneType": (type(None), st.none()),
    "Any": (Any, texts | numbers),
    "Optional": (Optional[int], st.none() | numbers),  # noqa: UP045 - both spellings are to work
    "Union": (Union[str, int], texts | numbers),  # noqa: UP007
    "bar": (int | list[int] | None, st.none() | numbers | st.lists(numbers, max_size=2)),
    "Literal": (Literal["a", "b", 1, None], st.sampled_from(["a", "b", 1, None])),  # noqa: PYI061
    "Enum": (Colour, st.sampled_from(Colour)),
    "IntEnum": (Level, st.sampled_from(Level)),
    "NewType": (UserId, numbers),
    "list": (list[int], st.lists(numbers, max_size=3)),
    "bare list": (list, st.lists(texts, max_size=2)),
    "list of lists": (list[list[str]], st.lists(st.lists(texts, max_size=2), max_size=2)),
    "sequence": (Sequence[int], st.lists(numbers, max_size=2)),
    "dict": (dict[str, float], st.dictionaries(texts, floats, max_size=2)),
    "bare dict": (dict, st.dictionaries(texts, texts, max_size=2)),
    "mapping": (Mapping[str, int], st.dictionaries(texts, numbers, max_size=2)),
    "int keys": (dict[int, str], st.dictionaries(st.integers(-99, 99), texts, max_size=2)),
    "enum keys": (dict[Colour, int], st.dictionaries(st.sampled_from(Colour), numbers, max_size=2)),
    "tuple": (tuple[int, str], st.tuples(numbers, texts)),
    "long tuple": (tuple[int, ...], st.lists(numbers, max_size=3).map(tuple)),
    "set": (set[int], st.sets(numbers, max_size=3)),
    "frozenset": (frozenset[str], st.frozensets(texts, max_size=3)),
    "bytes": (bytes, st.binary(max_size=5)),
    "datetime": (datetime.datetime, st.datetimes(datetime.datetime(1, 1, 2))),
    "aware": (datetime.datetime, st.datetimes(datetime.datetime(1900, 1, 2), timezones=st.just(datetime.UTC))),
    "date": (datetime.date, st.dates()),
    "time": (datetime.time, st.times()),
    "timedelta": (datetime.timedelta, st.timedeltas(datetime.timedelta(-999), datetime.timedelta(999))),
    "UUID": (uuid.UUID, st.uuids()),
    "Decimal": (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=3)),
    "dataclass": (Person, people),
    "list of dataclasses": (list[Person], st.lists(people, max_size=2)),
    "TypedDict": (Options, st.fixed_dictionaries({}, optional={"force": st.booleans(), "depth": numbers})),
    "NamedTuple": (Point, st.builds(Point, numbers, numbers)),
    "Struct": (Circle, st.builds(Circle, floats)),
    "tagged union": (Circle | Square, st.builds(Circle, floats) | st.builds(Square, floats)),
    "generic": (Page[Person], st.builds(Page, st.lists(people, max_size=2))),
    "recursive": (Tree, trees),
    "pydantic": (Address, st.builds(Address, street=texts, number=st.integers(-9, 9))),
    "list of pydantic": (list[Address], st.lists(st.builds(Address, street=texts), max_size=2)),
    "pydantic or none": (Address | None, st.none() | st.builds(Address, street=texts)),
    "Annotated": (Annotated[int, "how many"], numbers),
    "Meta": (Annotated[int, msgspec.Meta(ge=1, le=9, description="few")], st.integers(1, 9)),
    "Meta within": (list[Annotated[str, msgspec.Meta(max_length=6)]], st.lists(texts, max_size=2)),
}
READERS = {name: of(kind) for name, (kind, _) in KINDS.items()}
each_kind = pytest.mark.parametrize("kind", KINDS)


def encoded(value: Any) -> str:
    """A value as a model would write it."""
    return msgspec.json.encode({"x": value}, enc_hook=lambda model: model.model_dump(mode="json")).decode()


# Schemas.

TYPES = {"string", "integer", "number", "boolean", "null", "array", "object"}


def check_schema(schema: Any, root: dict[str, Any]) -> None:
    """What the metaschema says of the keywords that we use; and each reference leads somewhere."""
    if isinstance(schema, bool):
        return
    assert isinstance(schema, dict), schema
    if "$ref" in schema:
        place: Any = root
        assert schema["$ref"].startswith("#/"), schema
        for step in schema["$ref"].removeprefix("#/").split("/"):
            assert step in place, f"{schema['$ref']} leads nowhere"
            place = place[step]
    for keyword, value in schema.items():
        match keyword:
            case "type":
                assert value in TYPES, value
            case "properties" | "$defs":
                for inner in value.values():
                    check_schema(inner, root)
            case "items" | "additionalProperties" | "propertyNames":
                check_schema(value, root)
            case "anyOf" | "prefixItems":
                assert value, f"{keyword} is empty"
                for inner in value:
                    check_schema(inner, root)
            case "required":
                assert len(value) == len(set(value))
                assert set(value) <= schema["properties"].keys(), "it requires what it does not have"
            case "enum":
                assert value, "an enum is empty"
                assert len({json.dumps(one) for one in value}) == len(value)
            case "description" | "title" | "format" | "pattern" | "contentEncoding" | "$ref":
                assert isinstance(value, str)
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
                assert isinstance(value, int | float)
            case "minItems" | "maxItems" | "minLength" | "maxLength":
                assert isinstance(value, int)
                assert value >= 0
            case "uniqueItems":
                assert isinstance(value, bool)
            case "discriminator" | "default" | "const":
                pass
            case other:
                pytest.fail(f"a schema has the keyword {other!r}; say here what it may hold")


@each_kind
def test_each_kind_of_annotation_has_a_schema_whose_references_all_lead_somewhere(kind: str) -> None:
    root = schema_of(READERS[kind])
    check_schema(root, root)
    assert root["type"] == "object"
    assert root["additionalProperties"] is False, "a model is told that there is nothing else to write"
    assert list(root["properties"]) == ["x"]
    assert root["required"] == ["x"]


@each_kind
def test_a_schema_is_the_same_text_each_time_it_is_made(kind: str) -> None:
    again = of(KINDS[kind][0])
    assert again.schema == READERS[kind].schema
    assert again.digest == READERS[kind].digest


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["b", "a"], {"enum": ["a", "b"]}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}),
        (Annotated[int, "few", msgspec.Meta(le=9)], {"type": "integer", "maximum": 9, "description": "few"}),
        (EMPTY, {}),
        (Any, {}),
    ],
    ids=str,
)
def test_the_schema_of_a_parameter_is_that_of_its_type(kind: Any, schema: dict[str, Any]) -> None:
    assert x_of(of(kind)) == schema


def test_annotations_that_are_texts_are_those_types() -> None:
    arguments = Arguments("with_context", importable.with_context, skip=frozenset({"ctx"}))
    root = schema_of(arguments)
    check_schema(root, root)
    assert sorted(root["properties"]) == ["person", "tree"]
    found = arguments.read('{"person":{"name":"a"},"tree":{"value":1,"children":[{"value":2}]}}')
    assert found == {"person": Person("a"), "tree": Tree(1, [Tree(2)])}


def test_two_types_of_one_name_are_two_in_the_schema() -> None:
    def make(kind: type) -> Any:
        return msgspec.defstruct("Same", [("value", kind)], module=f"module_of_{kind.__name__}")

    one, other = make(int), make(str)

    def function(a, b):  # type: ignore[no-untyped-def]
        pass

    function.__annotations__ |= {"a": one, "b": other}
    arguments = Arguments("function", function)
    root = schema_of(arguments)
    check_schema(root, root)
    assert root["properties"]["a"] != root["properties"]["b"]
    assert arguments.read('{"a":{"value":1},"b":{"value":"1"}}') == {"a": one(1), "b": other("1")}


def test_a_type_that_has_the_name_of_the_arguments_is_another_one() -> None:
    arguments = of(msgspec.defstruct("function_arguments", [("y", int)]))
    root = schema_of(arguments)
    check_schema(root, root)
    assert list(root["properties"]) == ["x"]
    assert arguments.read('{"x":{"y":1}}')["x"].y == 1


@pytest.mark.parametrize(
    "kind",
    [complex, object, Callable[[int], int], Iterator[int], type, str | datetime.date, Person | Circle, "Undefined"],
    ids=str,
)
def test_a_type_without_a_json_form_is_refused_with_the_tool_s_name_when_the_tool_is_made(kind: Any) -> None:
    with pytest.raises(BadTool) as refused:
        of(kind)
    assert refused.value.name == "function"


def test_a_pydantic_model_with_further_models_can_be_an_argument() -> None:
    arguments = of(Household)
    root = schema_of(arguments)
    check_schema(root, root)
    found = arguments.read('{"x":{"address":{"street":"a"},"others":[{"street":"b","number":2}]}}')
    assert found["x"] == Household(address=Address(street="a"), others=[Address(street="b", number=2)])


def test_a_pydantic_model_with_an_enum_can_be_an_argument() -> None:
    class Paint(pydantic.BaseModel):
        colour: Colour

    arguments = of(list[Paint])
    root = schema_of(arguments)
    check_schema(root, root)
    assert arguments.read('{"x":[{"colour":"red"}]}')["x"] == [Paint(colour=Colour.RED)]


def test_a_pydantic_model_with_further_models_can_stand_deep_within_an_argument() -> None:
    street = msgspec.defstruct("Street", [("houses", list[Household]), ("first", Household | None, None)])
    arguments = of(dict[str, street])  # type: ignore[valid-type]
    root = schema_of(arguments)
    check_schema(root, root)
    found = arguments.read('{"x":{"a":{"houses":[{"address":{"street":"b"}}]}}}')
    assert found["x"]["a"].houses == [Household(address=Address(street="b"))]


def test_a_pydantic_model_that_refers_to_itself_can_be_an_argument() -> None:
    arguments = of(Folder)
    root = schema_of(arguments)
    check_schema(root, root)
    assert arguments.read('{"x":{"folders":[{"folders":[]}]}}')["x"] == Folder(folders=[Folder()])


def test_a_strict_pydantic_model_takes_what_json_has_for_its_types() -> None:
    class Day(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(strict=True)
        date: datetime.date

    assert read(Day, '{"date":"2026-01-02"}') == Day(date=datetime.date(2026, 1, 2))
    with pytest.raises(BadArguments):
        read(Day, '{"date":5}')


# Which parameters there are.


def test_keyword_only_parameters_are_arguments_like_others() -> None:
    def function(a: int, *, b: str, c: int = 3) -> None:
        pass

    arguments = Arguments("function", function)
    assert schema_of(arguments)["required"] == ["a", "b"]
    assert arguments.read('{"b":"x","a":1}') == {"a": 1, "b": "x", "c": 3}


def test_a_parameter_with_a_default_may_stand_before_one_without() -> None:
    def function(*, a: int = 1, b: str) -> None:
        pass

    assert Arguments("function", function).read('{"b":"x"}') == {"a": 1, "b": "x"}


def test_parameters_may_have_any_name_that_python_allows() -> None:
    def function(self: int, cls: int, name: str, skip: int, type: int, json: int, _x: int, größe: int) -> None:
        pass

    names = ["self", "cls", "skip", "type", "json", "_x", "größe"]
    wanted = dict.fromkeys(names, 1) | {"name": "n"}
    assert Arguments("function", function).read(json.dumps(wanted)) == wanted


@pytest.mark.parametrize("name", ["__struct_fields__", "__post_init__", "__init__", "__class__", "__dict__"])
def test_a_parameter_named_like_something_of_python_s_own_is_read_or_refused_when_the_tool_is_made(name: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def function({name}: int): ...", space)
    try:
        arguments = Arguments("function", space["function"])
    except BadTool:
        return
    assert arguments.read(f'{{"{name}":1}}') == {name: 1}


def any_number(*x: int) -> None: ...
def any_name(**x: int) -> None: ...
def by_position(x: int, /) -> None: ...


@pytest.mark.parametrize("function", [any_number, any_name, by_position], ids=lambda function: function.__name__)
def test_a_parameter_that_a_model_cannot_name_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(BadTool, match="'x'"):
        Arguments("function", function)


def test_a_positional_only_parameter_is_not_said_to_take_any_number() -> None:
    with pytest.raises(BadTool) as refused:
        Arguments("function", by_position)
    assert "any number" not in str(refused.value)


def test_a_function_without_a_signature_is_refused_in_our_words() -> None:
    with pytest.raises(BadTool, match="max"):
        Arguments("max", max)


def test_a_function_without_parameters_takes_nothing() -> None:
    def function() -> None:
        pass

    arguments = Arguments("function", function)
    assert arguments.read("{}") == arguments.read("") == {}
    with pytest.raises(BadArguments):
        arguments.read('{"x":1}')


# Defaults.


@pytest.mark.parametrize(
    ("kind", "default", "shown"),
    [
        (int, 3, 3),
        (str, "", ""),
        (bool, False, False),
        (int | None, None, None),
        (Colour, Colour.RED, "red"),
        (tuple[int, ...], (1, 2), [1, 2]),
        (datetime.date, datetime.date(2026, 1, 2), "2026-01-02"),
        (Point, Point(1, 2), [1, 2]),
        (Circle, Circle(1.0), {"type": "circle", "radius": 1.0}),
        (Person, Person("a", 1), {"name": "a", "age": 1}),
    ],
    ids=str,
)
def test_a_default_is_shown_to_the_model_and_used_when_it_writes_nothing(kind: Any, default: Any, shown: Any) -> None:
    arguments = of(kind, default)
    assert x_of(arguments)["default"] == shown
    assert schema_of(arguments)["required"] == []
    assert arguments.read("{}") == {"x": default}


@pytest.mark.parametrize(
    ("kind", "default"), [(list[int], [1]), (dict[str, int], {"a": 1}), (set[int], {1}), (Tree, Tree(1)), (list, [])]
)
def test_a_mutable_default_is_used_when_the_model_writes_nothing(kind: Any, default: Any) -> None:
    assert of(kind, default).read("{}") == {"x": default}


@pytest.mark.parametrize("default", [[1], {"a": 1}, {1}, bytearray(b"a"), [[1]], {"a": [1]}, Person("a")], ids=str)
def test_what_a_call_does_to_a_mutable_default_is_not_there_in_the_next(default: Any) -> None:
    arguments = of(Any, default)
    before = repr(default)
    first = arguments.read("{}")["x"]
    match first:
        case [list() as inner] | {"a": list() as inner}:
            inner.append(2)
        case list() | bytearray():
            first.append(2)
        case dict():
            first["b"] = 2
        case set():
            first.add(2)
        case Person():
            first.name = "b"
    assert repr(first) != before, "the test itself should change it"
    assert repr(arguments.read("{}")["x"]) == before


@pytest.mark.parametrize(
    "default",
    [object(), len, Address(street="a"), ..., msgspec.NODEFAULT, lambda: 1],
    ids=lambda default: type(default).__name__,
)
def test_a_default_without_a_json_form_is_used_or_refused_when_the_tool_is_made(default: Any) -> None:
    try:
        arguments = of(Any, default)
    except BadTool:
        return
    assert arguments.read("{}") == {"x": default}


@pytest.mark.parametrize("default", [math.inf, -math.inf, math.nan])
def test_a_default_that_json_cannot_say_is_still_the_default(default: float) -> None:
    arguments = of(float, default)
    assert repr(arguments.read("{}")["x"]) == repr(default)
    root = schema_of(arguments)
    check_schema(root, root)


def test_a_default_that_is_not_valid_unicode_is_refused_in_our_words() -> None:
    with pytest.raises(BadTool):
        of(str, "\ud800")


# Docstrings.

GOOGLE = """Reads a log.

The end of it.

Args:
    x: the build's
        number
    y (str): never there

Returns:
    The text.
"""
NUMPY = """Reads a log.

The end of it.

Parameters
----------
x : int
    the build's
    number

Returns
-------
str
    The text.
"""
SPHINX = """Reads a log.

The end of it.

:param x: the build's
    number
:returns: The text.
"""


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_a_docstring_describes_the_tool_and_its_arguments_in_either_style(doc: str) -> None:
    arguments = of(int, doc=doc)
    assert arguments.description == "Reads a log.\n\nThe end of it."
    assert x_of(arguments) == {"type": "integer", "description": "the build's number"}


@pytest.mark.parametrize("kind", [Tree, Address, list[Person], EMPTY, int | None], ids=str)
def test_a_docstring_describes_arguments_of_every_kind(kind: Any) -> None:
    root = schema_of(of(kind, doc=GOOGLE))
    check_schema(root, root)
    assert root["properties"]["x"]["description"] == "the build's number"


@pytest.mark.parametrize(
    "kind", [Annotated[int, "its own"], Annotated[int, msgspec.Meta(description="its own")]], ids=["text", "Meta"]
)
def test_an_annotation_s_own_words_come_before_the_docstring_s(kind: Any) -> None:
    assert x_of(of(kind, doc=GOOGLE))["description"] == "its own"


def test_a_docstring_s_words_do_not_loosen_what_an_annotation_demands() -> None:
    arguments = of(Annotated[int, msgspec.Meta(ge=1)], doc=GOOGLE)
    assert x_of(arguments) == {"type": "integer", "minimum": 1, "description": "the build's number"}
    with pytest.raises(BadArguments, match="1"):
        arguments.read('{"x":0}')


@some
@given(doc=st.text(st.sampled_from("ax: \n-*:param@Args()") | st.characters(exclude_categories=["Cs"]), max_size=60))
@example(":param")
@example("Args:\n    x")
@example("Args:\n  x: y\n z")
@example("Parameters\n---\nx :")
@example(":param a b c d: x")
def test_no_docstring_however_odd_keeps_a_function_from_being_a_tool(doc: str) -> None:
    arguments = of(int, doc=doc)
    assert arguments.read('{"x":1}') == {"x": 1}


def test_a_docstring_that_is_not_valid_unicode_is_refused_in_our_words() -> None:
    with pytest.raises(BadTool):
        of(int, doc=":param x: \ud800")


def test_no_docstring_is_no_description() -> None:
    assert of(int).description == ""


# Digests.


def test_a_digest_changes_exactly_when_the_schema_does() -> None:
    made = [of(kind) for kind, _ in KINDS.values()]
    made += [of(int, 1), of(int, 2), of(int, doc=GOOGLE), of(int, doc=NUMPY)]
    for one in made:
        for other in made:
            assert (one.digest == other.digest) == (one.schema == other.schema)


@pytest.mark.parametrize("pair", [([1], [2]), ({"a": 1}, {}), ({1}, {2})], ids=str)
def test_another_mutable_default_is_another_schema_as_with_any_default(pair: tuple[Any, Any]) -> None:
    one, other = pair
    assert of(Any, one).digest != of(Any, other).digest, "the model is not told of this default"


# Reading.


@each_kind
def test_what_fits_comes_back_as_an_equal_value_of_the_type(kind: str) -> None:
    _, strategy = KINDS[kind]

    @settings(max_examples=15, deadline=None, database=None)
    @given(value=strategy)
    def check(value: Any) -> None:
        found = READERS[kind].read(encoded(value))["x"]
        assert found == value
        assert type(found) is type(value)

    check()


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["red", "1", "nan"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["value", "name", "children", "type", "street", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, database=None)
@given(value=json_values, kind=st.sampled_from(sorted(KINDS)))
def test_any_json_either_fits_or_is_refused_as_bad_arguments(value: Any, kind: str) -> None:
    for text in (json.dumps({"x": value}), json.dumps(value)):
        try:
            found = READERS[kind].read(text)
        except BadArguments:
            continue
        assert found.keys() == {"x"}


@some
@given(text=st.text(st.characters() | st.sampled_from('{}[]":,x1'), max_size=30), kind=st.sampled_from(sorted(KINDS)))
def test_any_text_either_fits_or_is_refused_as_bad_arguments(text: str, kind: str) -> None:
    try:
        READERS[kind].read(text)
    except BadArguments:
        pass
    else:
        assert json.loads(text).keys() == {"x"}


NASTY = [
    "1e400",
    "-1e400",
    "9" * 5_000,
    '"' + "9" * 5_000 + '"',
    "1e308",
    '"1e999999999"',
    '"P999999999999D"',
    '"0001-01-01T00:00:00+23:59"',
    '"9999-12-31T23:59:59-23:59"',
    "[" * 5_000 + "]" * 5_000,
    '{"value":1,"children":[' * 3_000 + "]}" * 3_000,
    '"\\ud800"',
    '"\\u0000"',
    '"\ud800"',
    "NaN",
    "1 2",
    "{",
    "null",
    '"' + "x" * 100_000 + '"',
]


@pytest.mark.parametrize("text", NASTY, ids=lambda text: ascii(text[:20]))
def test_what_is_meant_to_break_a_parser_is_refused_as_bad_arguments_or_fits(text: str) -> None:
    for kind, reader in READERS.items():
        said = ""
        try:
            reader.read(f'{{"x":{text}}}')
        except BadArguments as refused:
            said = str(refused)
        assert len(said) < len(reader.schema) + 2_000, f"{kind}: the message is as long as what was written"


class Explodes(msgspec.Struct):
    how: str

    def __post_init__(self) -> None:
        raise {"key": KeyError("k"), "zero": ZeroDivisionError("z"), "value": ValueError("too blue")}[self.how]


@pytest.mark.parametrize("how", ["key", "zero", "value"])
def test_whatever_a_type_raises_while_it_validates_is_a_refusal(how: str) -> None:
    with pytest.raises(BadArguments):
        read(Explodes, f'{{"how":"{how}"}}')


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, '"3"', 3),
        (int, "3.0", 3),
        (int, "1180591620717411303425", 1180591620717411303425),
        (float, "3", 3.0),
        (float, '"3.5"', 3.5),
        (bool, '"true"', True),
        (bool, "0", False),
        (str | None, '"null"', "null"),
        (str | int, '"3"', "3"),
        (str | bool, '"true"', "true"),
        (int | None, '"null"', None),
        (list[int], '["1",2]', [1, 2]),
        (decimal.Decimal, '"0.12345678901234567890123"', decimal.Decimal("0.12345678901234567890123")),
        (decimal.Decimal, "0.12345678901234567890123", decimal.Decimal("0.12345678901234567890123")),
        (str, '" 3 "', " 3 "),
    ],
    ids=str,
)
def test_what_is_plainly_meant_is_taken_for_it_without_loss(kind: Any, text: str, value: Any) -> None:
    found = read(kind, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "3.5"),
        (int, '"3.5"'),
        (int, "true"),
        (int, "null"),
        (int, '""'),
        (int, '"three"'),
        (int, "[3]"),
        (str, "3"),
        (str, "true"),
        (str, "null"),
        (bool, "2"),
        (bool, '"maybe"'),
        (list[int], '"[1]"'),
        (list[int], "1"),
        (dict[str, int], "[]"),
        (Literal["a"], '"A"'),
        (Colour, '"RED"'),
        (uuid.UUID, '"x"'),
        (datetime.date, '"yesterday"'),
        (Person, '{"age":1}'),
        (tuple[int, int], "[1]"),
        (Annotated[int, msgspec.Meta(ge=1)], "0"),
        (Address, '{"number":1}'),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_the_place_and_the_schema(kind: Any, text: str) -> None:
    arguments = of(kind)
    with pytest.raises(BadArguments) as refused:
        arguments.read(f'{{"x":{text}}}')
    said = str(refused.value)
    assert said.startswith("The arguments for function do not fit: ")
    assert "$.x" in said, "a model must be told which argument it is"
    assert arguments.schema in said, "a model must be told what would fit"


def test_a_missing_and_an_unknown_argument_are_named() -> None:
    with pytest.raises(BadArguments, match="`x`"):
        of(int).read("{}")
    with pytest.raises(BadArguments, match="`yy`"):
        of(int).read('{"x":1,"yy":2}')


def test_the_message_does_not_repeat_an_endless_name_that_the_model_wrote() -> None:
    with pytest.raises(BadArguments) as refused:
        of(int).read(f'{{"x":1,"{"y" * 100_000}":1}}')
    assert len(str(refused.value)) < 5_000


def test_the_message_does_not_repeat_an_endless_schema() -> None:
    with pytest.raises(BadArguments) as refused:
        of(int, doc=f"Short.\n\nArgs:\n    x: {'long ' * 20_000}").read("{}")
    assert len(str(refused.value)) < 20_000


@pytest.mark.parametrize("text", ["", "{}"])
def test_nothing_written_is_no_arguments(text: str) -> None:
    assert of(int, 1).read(text) == {"x": 1}


# Answers.


class Answer(TypedDict):
    text: str


class Triple(NamedTuple):
    a: int


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Person, Person("a", 1)),
        (Circle, Circle(1.0)),
        (Answer, {"text": "a"}),
        (Address, Address(street="a")),
        (Household, Household(address=Address(street="a"))),
        (Tree, Tree(1, [Tree(2)])),
        (Page[Person], Page([Person("a")])),
        (dict[str, int], {"a": 1}),
    ],
    ids=str,
)
def test_an_answer_s_type_has_a_schema_and_reads_its_own_json(kind: Any, value: Any) -> None:
    root = json.loads(json_schema(kind))
    check_schema(root, root)
    assert json_schema(kind) == json_schema(kind)
    text = msgspec.json.encode(value, enc_hook=lambda model: model.model_dump()).decode()
    found = decode_as(kind, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (int, 1),
        (str, "a"),
        (list[int], [1]),
        (Triple, Triple(1)),
        (Colour, next(iter(Colour))),
        (int | None, None),
        (int | str, "a"),
        (list[Person] | None, [Person("a", 1)]),
        (Person | None, Person("a", 1)),
        (Circle | Square, Square(1.0)),
        (list[Address], [Address(street="a")]),
    ],
    ids=str,
)
def test_an_answer_that_is_no_object_is_the_value_of_one(kind: Any, value: Any) -> None:
    root = json.loads(json_schema(kind))
    check_schema(root, root)
    assert (root["type"], root["required"], root["additionalProperties"]) == ("object", ["value"], False)
    text = msgspec.json.encode({"value": value}, enc_hook=lambda model: model.model_dump()).decode()
    found = decode_as(kind, text)
    assert found == value
    assert type(found) is type(value)
    for wrong in (msgspec.json.encode(value, enc_hook=lambda model: model.model_dump()).decode(), "{}", '{"a":1}'):
        with pytest.raises(ValueError):
            decode_as(kind, wrong)


def test_a_type_within_itself_has_an_object_at_the_top_of_its_schema() -> None:
    root = json.loads(json_schema(Tree))
    check_schema(root, root)
    assert (root["type"], root["properties"]["children"]["items"]) == ("object", {"$ref": "#/$defs/Tree"})


@pytest.mark.parametrize("kind", [Person, Address, Answer, Explodes], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"number":"x"}', "\ud800", "[" * 9_000, '{"how":"value"}'])
def test_an_answer_that_does_not_fit_is_a_value_error(kind: Any, text: str) -> None:
    with pytest.raises(ValueError):
        decode_as(kind, text)


@pytest.mark.parametrize("how", ["key", "zero"])
def test_whatever_an_answer_s_type_raises_while_it_validates_is_a_value_error(how: str) -> None:
    with pytest.raises(ValueError):
        decode_as(Explodes, f'{{"how":"{how}"}}')


def test_an_answer_that_is_nested_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        decode_as(Tree, '{"value":1,"children":[' * 9_000 + "]}" * 9_000)
