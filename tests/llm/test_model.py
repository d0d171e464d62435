"""`LLM` is frozen data that says everything but a key, and refuses what would have no effect."""

import copy
import io
import json
import pickle
import re
import traceback
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import BadModel, BadSetting, ForkpointError, MissingKey
from forkpoint.llm.catalog import SAMPLING, WIRES
from forkpoint.llm.key import Key
from forkpoint.llm.model import LLM, Price, Retries, Timeouts, as_llm

many = settings(max_examples=150, deadline=None, database=None)
SECRET = "sk-never-to-be-seen-4711"

MODELS = {  # one of each wire
    "responses": LLM("openai/gpt-5"),
    "chat": LLM("openai/gpt-5", api="chat"),
    "messages": LLM("anthropic/claude"),
    "local": LLM("local/smollm2"),
    "scripted": LLM("scripted/echo"),
}
each_wire = pytest.mark.parametrize("wire", MODELS)


def with_(wire: str, **settings: Any) -> LLM:
    return msgspec.structs.replace(MODELS[wire], **settings)


# Data.

rates = st.floats(0, 1000, allow_nan=False)
seconds = st.floats(0.001, 1e6, allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@st.composite
def llms(draw: st.DrawFn) -> LLM:
    """Any LLM that can be made."""
    kinds: list[tuple[str, Any]] = [
        ("openai/gpt-5", None),
        ("openai/gpt-5", "chat"),
        ("anthropic/claude", None),
        ("local/a/b.gguf", None),
        ("scripted/x", None),
    ]
    model, api = draw(st.sampled_from(kinds))
    wire = api or WIRES[model.partition("/")[0]][0]
    here = wire in {"local", "scripted"}
    fields: dict[str, st.SearchStrategy[Any]] = {
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "top_k": st.integers(1, 100),
        "seed": st.integers(0, 2**31 - 1),
        "stop": st.lists(texts, max_size=2).map(tuple),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
    }
    fields = {name: strategy for name, strategy in fields.items() if wire in SAMPLING[name]}
    fields |= {
        "max_tokens": st.integers(1, 2**31 - 1),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "reasoning_back": st.booleans(),
        "timeouts": st.builds(Timeouts, seconds, seconds, seconds, seconds),
        "retries": st.builds(Retries, st.integers(1, 9), seconds, seconds),
        "price": st.builds(Price, rates, rates, st.none() | rates, st.none() | rates),
    }
    if not here:
        fields |= {
            "cache_ttl": st.sampled_from(["5m", "1h"]),
            "api_key_env": st.sampled_from(["SOME_KEY"]),
            "session_headers": st.sampled_from([(), ("x-a",)]),
            "headers": st.lists(
                st.tuples(st.sampled_from(["x-a", "X-B"]), st.text("aB1 =;", max_size=5)), max_size=2
            ).map(tuple),
            "extra": st.dictionaries(texts.map(lambda name: f"x_{name}"), st.integers(), max_size=2).map(json.dumps),
            "provider": texts,
        }
        if api is None:
            fields["base_url"] = st.sampled_from(["http://localhost:8080/v1", "https://host.example"])
    if "base_url" in fields and wire == "responses":
        fields.pop("base_url")
    if wire == "chat":
        fields["cache_salt"] = st.booleans()
        fields["cache_key"] = st.sampled_from(["auto", "send", "never"])
    if wire == "local":
        fields["context_tokens"] = st.integers(256, 2**20)
    return LLM(model, api=api, **draw(st.fixed_dictionaries({}, optional=fields)))


@many
@given(llm=llms())
def test_an_llm_comes_back_from_its_document_equal_and_hashes_alike(llm: LLM) -> None:
    again = LLM.from_json(llm.to_json())
    assert again == llm
    assert hash(again) == hash(llm)
    assert again.to_json() == llm.to_json()
    assert LLM.from_json(llm.to_json().encode()) == llm


def test_a_name_alone_is_a_document_of_a_name_alone() -> None:
    assert LLM("openai/gpt-5").to_json() == '{"model":"openai/gpt-5"}'
    assert as_llm("openai/gpt-5") == LLM("openai/gpt-5")
    llm = LLM("openai/gpt-5")
    assert as_llm(llm) is llm


def test_no_field_can_be_assigned() -> None:
    for frozen in (MODELS["chat"], Timeouts(), Retries(), Price(1, 2)):
        for field in msgspec.structs.fields(frozen):
            with pytest.raises(AttributeError):
                setattr(frozen, field.name, getattr(frozen, field.name))


def test_models_are_the_keys_of_a_dictionary_even_with_a_literal_key() -> None:
    one, same, other = (LLM("openai/gpt-5", api_key=key) for key in ("a", "a", "b"))
    assert {one: 1, other: 2}[same] == 1
    assert one != other


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"model":1}',
        '{"model":"openai/x","tempratur":1}',
        '{"model":"openai/x","api":"soap"}',
        '{"model":"openai/x","timeouts":{"whole":1}}',
        b"\xff",
        b'{"model":"openai/\xff"}',
        "\ud800",
    ],
    ids=ascii,
)
def test_a_document_that_is_no_llm_is_refused_in_our_words(document: str | bytes) -> None:
    with pytest.raises(BadSetting):
        LLM.from_json(document)


def test_a_document_with_settings_that_do_not_fit_is_refused_like_the_settings() -> None:
    with pytest.raises(BadModel):
        LLM.from_json('{"model":"gpt-5"}')
    with pytest.raises(BadSetting, match="top_k"):
        LLM.from_json('{"model":"openai/gpt-5","top_k":1}')


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": float("nan")},
        {"timeouts": Timeouts(total=float("nan"))},
        {"timeouts": Timeouts(total=float("inf"))},
        {"retries": Retries(wait=float("nan"))},
        {"retries": Retries(longest=float("inf"))},
    ],
    ids=str,
)
def test_a_number_that_json_cannot_say_is_refused_or_comes_back(setting: dict[str, Any]) -> None:
    try:
        llm = LLM("openai/gpt-5", **setting)
    except BadSetting:
        return
    name, value = next(iter(setting.items()))
    assert getattr(LLM.from_json(llm.to_json()), name) == value, f"{name} was lost on its way to the disk and back"


@pytest.mark.parametrize(
    "price",
    [Price(float("nan"), 1), Price(1, float("inf")), Price(-1, 1), Price(1, 1, float("nan")), Price(1, 1, 1, -1)],
    ids=str,
)
def test_a_price_that_nobody_can_pay_is_refused_before_a_call_is_made(price: Price) -> None:
    with pytest.raises(BadSetting, match="price"):
        LLM("openai/gpt-5", price=price)


@pytest.mark.parametrize("retries", [Retries(0), Retries(-1), Retries(wait=-1.0), Retries(longest=-1.0)], ids=str)
def test_retries_that_cannot_be_done_are_refused(retries: Retries) -> None:
    with pytest.raises(BadSetting, match="retries"):
        LLM("openai/gpt-5", retries=retries)


@pytest.mark.parametrize(
    ("setting", "value", "advice"),
    [
        *(("retries", value, "Retries(attempts=1) for one try") for value in (0, 3, None, {"attempts": 1})),
        *(("timeouts", value, "Timeouts(total=60)") for value in (0, 30.0, None)),
        *(("price", value, "Price(input=1, output=5)") for value in (0, 1.5, (1, 5))),
    ],
)
def test_a_number_in_the_place_of_several_settings_is_refused_by_name(setting: str, value: Any, advice: str) -> None:
    with pytest.raises(
        BadSetting, match=re.escape(f"of the class {setting.capitalize()}, such as {advice}")
    ) as refused:
        LLM("openai/gpt-5", **{setting: value})
    assert refused.value.setting == setting


# A literal key is nowhere to be read.


def literal() -> LLM:
    return LLM("openai/gpt-5", api_key=SECRET)


def test_a_literal_key_is_in_no_text_that_is_made_of_an_llm() -> None:
    llm = literal()
    assert llm.key() == Key(SECRET)
    for shown in (llm.to_json(), repr(llm), str(llm), f"{llm}", repr(msgspec.structs.asdict(llm))):
        assert SECRET not in shown
    assert SECRET not in repr(Key(SECRET))
    assert SECRET not in f"{Key(SECRET)}"
    assert LLM.from_json(llm.to_json()).api_key is None


@pytest.mark.parametrize(
    "encode",
    [
        msgspec.json.encode,
        msgspec.msgpack.encode,
        msgspec.to_builtins,
        lambda llm: json.dumps(msgspec.structs.asdict(llm)),
    ],
    ids=["json", "msgpack", "builtins", "json.dumps"],
)
def test_an_encoder_that_is_given_a_literal_key_fails_rather_than_writes_it(encode: Any) -> None:
    with pytest.raises(TypeError) as refused:
        encode(literal())
    assert SECRET not in str(refused.value)


def test_pickling_never_writes_a_literal_key() -> None:
    """A pickle is a document like any other: it stands on disks, in queues and in other processes' memory."""
    buffer = io.BytesIO()
    try:
        pickle.dump(literal(), buffer)
    except TypeError as refused:
        buffer.write(str(refused).encode())
    assert SECRET.encode() not in buffer.getvalue(), "the key is in the pickle, in plain text"


def test_an_llm_with_a_literal_key_can_be_copied_in_memory() -> None:
    assert copy.copy(literal()) == literal()
    assert copy.deepcopy(literal()) == literal()
    assert msgspec.structs.replace(literal(), max_tokens=5).key() == Key(SECRET)


@pytest.mark.parametrize(
    "wrong",
    [{"top_k": 1}, {"max_tokens": 0}, {"base_url": "ftp://x"}, {"extra": "["}, {"headers": (("a b", "c"),)}],
    ids=str,
)
def test_no_error_about_other_settings_shows_a_literal_key(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting) as refused:
        LLM("openai/gpt-5", api_key=SECRET, **wrong)
    shown = str(refused.value) + repr(refused.value) + "".join(traceback.format_exception(refused.value))
    assert SECRET not in shown


@pytest.mark.parametrize("key", [SECRET.encode(), [SECRET], {"key": SECRET}, 4711], ids=lambda key: type(key).__name__)
def test_a_key_that_is_no_text_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(ForkpointError, match="api_key") as refused:
        LLM("openai/gpt-5", api_key=key)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("key", ["", "  ", "\n"])
def test_a_blank_literal_key_is_refused_like_a_missing_one(key: str) -> None:
    with pytest.raises((BadSetting, MissingKey)):
        LLM("openai/gpt-5", api_key=key).key()


def test_two_places_for_one_key_are_refused() -> None:
    with pytest.raises(BadSetting, match="api_key"):
        LLM("openai/gpt-5", api_key=SECRET, api_key_env="SOME_KEY")


# Where a key comes from.


@pytest.mark.parametrize(
    ("model", "variable"), [("openai/gpt-5", "OPENAI_API_KEY"), ("anthropic/x", "ANTHROPIC_API_KEY")]
)
def test_a_missing_key_names_the_variable_that_should_hold_it(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM(model)
    assert llm.key_variable == variable
    monkeypatch.delenv(variable, raising=False)
    for blank in (None, "", "  ", "\n\t"):
        if blank is not None:
            monkeypatch.setenv(variable, blank)
        with pytest.raises(MissingKey, match=variable) as missing:
            llm.key()
        assert (missing.value.model, missing.value.variable) == (model, variable)
    monkeypatch.setenv(variable, f" {SECRET}\n")
    assert llm.key() == Key(SECRET), "a key is looked up at the moment of a call, without what surrounds it"
    assert SECRET not in llm.to_json() + repr(llm)


def test_a_key_of_a_variable_of_one_s_own_is_missed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.delenv("SOME_KEY", raising=False)
    llm = LLM("openai/gpt-5", api_key_env="SOME_KEY")
    with pytest.raises(MissingKey, match="SOME_KEY"):
        llm.key()
    monkeypatch.setenv("SOME_KEY", "other")
    assert llm.key() == Key("other")


@pytest.mark.parametrize("model", ["openai/gpt-5", "anthropic/claude"])
@pytest.mark.parametrize("base_url", ["http://localhost:8080/v1", "https://api.example.com"])
def test_the_key_of_one_company_is_never_shown_to_another(
    model: str, base_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, SECRET)
    llm = LLM(model, base_url=base_url)
    assert llm.key_variable is None
    assert llm.key() is None
    monkeypatch.setenv("SOME_KEY", "theirs")
    assert LLM(model, base_url=base_url, api_key_env="SOME_KEY").key() == Key("theirs")
    assert LLM(model, base_url=base_url, api_key="literal").key() == Key("literal")


@pytest.mark.parametrize("model", ["local/smollm2", "scripted/echo"])
def test_a_model_in_this_process_needs_no_key(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert LLM(model).key_variable is None
    assert LLM(model).key() is None


# Names, wires and who serves.


@pytest.mark.parametrize(
    "model",
    [
        *("", "/", "gpt-5", "openai/", "openai/  ", "/gpt-5", "OpenAI/gpt-5", "mistral/large", "openai /gpt-5"),
        *("local/", "local/llama", "local/x.GGUF", "local/.gguf", "local/x.gguf/y", "scripted/", "anthropic\\claude"),
    ],
)
def test_what_names_no_model_is_refused(model: str) -> None:
    with pytest.raises(BadModel) as refused:
        LLM(model)
    assert refused.value.model == model


@pytest.mark.parametrize(
    ("model", "kind", "name"),
    [
        ("openai/gpt-5", "openai", "gpt-5"),
        ("openai/meta-llama/Llama-3:free", "openai", "meta-llama/Llama-3:free"),
        ("local//absolute/x.gguf", "local", "/absolute/x.gguf"),
        ("scripted/a/b.json", "scripted", "a/b.json"),
    ],
)
def test_a_name_is_what_stands_after_the_first_slash(model: str, kind: str, name: str) -> None:
    assert (LLM(model).kind, LLM(model).name) == (kind, name)


@pytest.mark.parametrize(
    ("llm", "wire"),
    [
        (LLM("openai/x"), "responses"),
        (LLM("openai/x", api="chat"), "chat"),
        (LLM("openai/x", base_url="http://h/v1"), "chat"),
        (LLM("openai/x", base_url="http://h/v1", api="responses"), "responses"),
        (LLM("anthropic/x"), "messages"),
        (LLM("anthropic/x", base_url="http://h"), "messages"),
        (LLM("local/smollm2"), "local"),
        (LLM("scripted/x"), "scripted"),
    ],
    ids=lambda value: getattr(value, "model", value),
)
def test_the_wire_is_the_one_that_its_server_speaks(llm: LLM, wire: str) -> None:
    assert llm.wire == wire


@pytest.mark.parametrize(
    ("model", "api"),
    [("anthropic/x", "chat"), ("openai/x", "messages"), ("local/smollm2", "chat"), ("openai/x", "soap")],
)
def test_a_wire_that_a_provider_does_not_speak_is_refused(model: str, api: Any) -> None:
    with pytest.raises(BadSetting, match=r"^api"):
        LLM(model, api=api)


def test_who_serves_a_model_is_told_by_name_or_host_and_never_by_port() -> None:
    assert LLM("openai/x").served_by == "openai"
    assert LLM("anthropic/x").served_by == "anthropic"
    assert LLM("openai/x", base_url="http://GPU.example:8000/v1").served_by == "gpu.example"
    assert LLM("openai/x", base_url="https://gpu.example/v1").served_by == "gpu.example"
    assert LLM("openai/x", base_url="http://[::1]:8000/v1").served_by == "::1"
    assert LLM("openai/x", base_url="http://gpu.example:8000/v1", provider="mine").served_by == "mine"
    assert LLM("local/smollm2").served_by == "local"


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "localhost:8080",
        "http://user:pass@gpu.example:1/v1",  # a literal secret, which would be stored
        "ftp://host",
        "host/v1",
        "http:/host",
        "http://",
        "http:///v1",
        "http://[",
        "https://:8080/v1",
        "http://host:port/v1",
        "http://host:99999999/v1",
    ],
)
def test_a_base_url_without_a_server_is_refused(base_url: str) -> None:
    with pytest.raises(BadSetting, match="base_url"):
        LLM("openai/gpt-5", base_url=base_url)


# What a wire cannot take is refused by name.

SAMPLES: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "seed": 5,
    "stop": ("a",),
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
}


@each_wire
@pytest.mark.parametrize("setting", SAMPLING)
def test_a_sampling_setting_is_taken_where_its_wire_has_it_and_refused_elsewhere(wire: str, setting: str) -> None:
    if wire in SAMPLING[setting]:
        assert getattr(with_(wire, **{setting: SAMPLES[setting]}), setting) == SAMPLES[setting]
        return
    with pytest.raises(BadSetting, match=f"^{setting} ") as refused:
        with_(wire, **{setting: SAMPLES[setting]})
    assert wire in str(refused.value)


@pytest.mark.parametrize("setting", ["temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty"])
def test_zero_is_a_setting_too(setting: str) -> None:
    taken = next(wire for wire in MODELS if wire in SAMPLING[setting])
    assert getattr(with_(taken, **{setting: 0}), setting) == 0
    for wire in MODELS.keys() - SAMPLING[setting]:
        with pytest.raises(BadSetting, match=f"^{setting} "):
            with_(wire, **{setting: 0})


@pytest.mark.parametrize(
    ("wire", "setting", "value"),
    [
        *(("local", name, value) for name, value in (("base_url", "http://h"), ("api_key_env", "A"), ("api_key", "a"))),
        *(
            ("scripted", name, value)
            for name, value in (("base_url", "http://h"), ("api_key_env", "A"), ("api_key", "a"))
        ),
        ("local", "context_tokens", 255),
        *((wire, "reasoning_tokens", 2048) for wire in MODELS if wire != "messages"),
        *((wire, "max_tokens", number) for wire in MODELS for number in (0, -1)),
        *((wire, "cache_ttl", "1h") for wire in ("local", "scripted")),
        *((wire, "cache_salt", True) for wire in ("messages", "local", "scripted")),
        *((wire, "retries", Retries(0)) for wire in MODELS),
        *((wire, "timeouts", Timeouts(idle=value)) for wire in MODELS for value in (0.0, -1.0, float("nan"))),
        ("chat", "headers", (("a b", "c"),)),
        ("chat", "headers", (("", "c"),)),
        ("chat", "headers", (("a:b", "c"),)),
        ("chat", "session_headers", ("a\r\nb",)),
        *((wire, "cache_key", "send") for wire in ("messages", "local")),
        ("messages", "reasoning_tokens", 0),
        ("messages", "reasoning_tokens", -5),
        ("chat", "cache_ttl", ""),
    ],
    ids=str,
)
def test_a_setting_that_would_have_no_effect_is_refused_by_its_name(wire: str, setting: str, value: Any) -> None:
    with pytest.raises(BadSetting) as refused:
        with_(wire, **{setting: value})
    named = refused.value.setting.partition(".")[0]
    assert named in {setting, "headers"}, f"{setting} was refused as {refused.value.setting}"


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "\0"], ids=ascii)
def test_a_header_s_value_cannot_smuggle_in_another_header(value: str) -> None:
    with pytest.raises(BadSetting, match="headers"):
        LLM("openai/gpt-5", headers=(("x-a", value),))


def test_only_one_of_two_ways_to_say_how_much_to_think_may_be_used() -> None:
    with pytest.raises(BadSetting, match="reasoning_tokens"):
        LLM("anthropic/claude", reasoning_tokens=2048, reasoning_effort="high")


# Extra fields.

DEEP = '{"a":' * 600 + "1" + "}" * 600


@pytest.mark.parametrize(
    "extra",
    ["", " ", "[]", "1", "null", '"a"', "{", '{"a":1} x', "{'a':1}", '{"a":NaN}', '"\ud800"', DEEP],
    ids=lambda extra: ascii(extra)[:40],
)
def test_extra_fields_must_be_a_json_object(extra: str) -> None:
    with pytest.raises(BadSetting, match=r"^extra .*JSON object"):
        LLM("openai/gpt-5", extra=extra)


@pytest.mark.parametrize(
    "field", ["model", "messages", "input", "instructions", "system", "tools", "stream", "prompt_cache_key", "store"]
)
@pytest.mark.parametrize("wire", ["chat", "responses", "messages"])
def test_extra_fields_cannot_replace_what_is_made_from_the_conversation(wire: str, field: str) -> None:
    with pytest.raises(BadSetting, match=f"^extra .*{field}"):
        with_(wire, extra=json.dumps({"a": 1, field: None}))
    with pytest.raises(BadSetting, match=f"^extra .*{field}"):
        with_(wire, extra=f'{{"\\u{ord(field[0]):04x}{field[1:]}": null}}')


def test_extra_fields_cannot_switch_off_the_counting_of_tokens() -> None:
    with pytest.raises(BadSetting, match="stream_options"):
        LLM("openai/gpt-5", api="chat", extra='{"stream_options":{"include_usage":false}}')


def test_extra_fields_cannot_replace_a_tenant_s_salt() -> None:
    with pytest.raises(BadSetting, match="cache_salt"):
        LLM("openai/x", base_url="http://h/v1", cache_salt=True, extra='{"cache_salt":"the same for all"}')


def test_extra_fields_of_a_server_s_own_are_taken_as_they_are() -> None:
    extra = ' {"top_k": 1.0, "guided_regex": "\\u00e9"}'
    assert LLM("openai/x", base_url="http://h/v1", extra=extra).extra == extra


@pytest.mark.parametrize("name", ["Authorization", "x-api-key", "Cookie"])
def test_a_secret_in_a_header_is_refused_since_headers_are_stored(name: str) -> None:
    with pytest.raises(BadSetting, match="api_key_env"):
        LLM("openai/x", headers=((name, "secret"),))


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("qwen3", "openai/qwen3"),
        ("meta-llama/Llama-4", "openai/meta-llama/Llama-4"),
        ("openai/qwen3", "openai/qwen3"),
        ("openai/anthropic/claude", "openai/anthropic/claude"),
        ("anthropic/claude", "anthropic/claude"),
    ],
)
def test_with_a_base_url_a_name_without_a_prefix_is_the_servers_own(given: str, full: str) -> None:
    llm = LLM(given, base_url="http://127.0.0.1:1/v1")
    assert llm.model == full
    assert LLM.from_json(llm.to_json()) == llm


def test_the_wire_says_which_prefix_is_meant() -> None:
    assert LLM("claude", base_url="http://127.0.0.1:1", api="messages").model == "anthropic/claude"
    with pytest.raises(BadModel, match="no provider before a slash"):
        LLM("qwen3")
    with pytest.raises(BadSetting, match="name it openai/anthropic/claude"):
        LLM("anthropic/claude", base_url="http://127.0.0.1:1/v1", api="chat")


def test_a_model_with_some_settings_replaced_is_another_and_checked() -> None:
    llm = LLM("openai/gpt-5.6", api="chat", temperature=1.0, api_key="sk-secret")
    other = llm.replace(temperature=0.0, stop="END")
    assert (llm.temperature, other.temperature, other.stop, other.api_key) == (1.0, 0.0, ("END",), llm.api_key)
    assert llm.replace() == llm
    with pytest.raises(BadSetting, match="temprature"):
        llm.replace(temprature=0.5)
    with pytest.raises(BadSetting, match="temperature"):
        llm.replace(temperature="hot")
