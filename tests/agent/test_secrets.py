"""Secrets are references; their values are had when they are needed, and never shown, written, stored or told."""

import base64
import copy
import html
import itertools
import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.agent import Agent, ToolContext, run_call, tool
from forkpoint.agent.builtin import shell
from forkpoint.agent.secrets.masking import STARS, Masking
from forkpoint.agent.secrets.secret import LARGEST, Resolved, Secret, masking_of, resolve, secrets_of
from forkpoint.agent.stored.document import bind, portable_document
from forkpoint.errors import BadAgent, BadTool, CannotResume, NoSecret
from forkpoint.events import File, Image, StateChange, Text, ToolCall

pytestmark = pytest.mark.anyio

TOKEN = "gh/p+7 Zü\"x'&tail=90"
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nAAfirstandlastline1234==\n-----END KEY-----"


def printing(code: str) -> Secret:
    return Secret(command=(sys.executable, "-c", code))


# References.


@pytest.mark.parametrize(
    ("secret", "document"),
    [
        (Secret(env="GITHUB_TOKEN"), '{"env":"GITHUB_TOKEN"}'),
        (Secret(file="~/.token"), '{"file":"~/.token"}'),
        (Secret(command=("pass", "show", "x")), '{"command":["pass","show","x"]}'),
    ],
)
def test_a_secret_is_stored_as_its_reference_and_comes_back(secret: Secret, document: str) -> None:
    assert secret.to_json() == document
    assert Secret.from_json(document) == secret
    assert hash(Secret.from_json(document)) == hash(secret)


def test_a_command_may_be_given_as_a_list() -> None:
    assert Secret(command=["pass", "x"]) == Secret(command=("pass", "x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"env": "A", "file": "/a"},
        {"env": ""},
        {"env": "A=B"},
        {"env": 7},
        {"file": "relative/file"},
        {"file": "/a\0b"},
        {"command": ()},
        {"command": "pass show x"},
        {"command": (" ",)},
        {"command": ("pass", 7)},
    ],
)
def test_what_is_no_reference_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(BadAgent):
        Secret(**given)  # type: ignore[arg-type]


def test_a_document_that_is_none_is_refused() -> None:
    for text in ("{", "[]", '{"env":"A","value":"x"}', '{"value":"literal"}', '{"env":"A","file":"/b"}'):
        with pytest.raises((BadAgent, msgspec.ValidationError)):
            Secret.from_json(text)


def test_names_of_secrets_are_those_of_variables() -> None:
    assert list(secrets_of({"B": Secret(env="B"), "A": Secret(env="A")})) == ["A", "B"]
    for wrong in ({"a-b": Secret(env="A")}, {"": Secret(env="A")}, {"A": "literal"}, [Secret(env="A")]):
        with pytest.raises(BadAgent):
            secrets_of(wrong)


# Values.


async def test_a_value_comes_from_the_environment_a_file_or_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FP_TEST_TOKEN", "from env ")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_bytes(b"from a file\r\n")
    (tmp_path / "key").write_text(KEY + "\n")
    secrets = {
        "E": Secret(env="FP_TEST_TOKEN"),
        "F": Secret(file=str(tmp_path / "token")),
        "K": Secret(file="~/key"),
        "C": printing("print('from a command')"),
        "NEVER": Secret(env="FP_TEST_NOT_SET"),
    }
    found = await resolve(["E", "F", "K", "C"], secrets)
    assert dict(found) == {"E": "from env ", "F": "from a file", "K": KEY, "C": "from a command"}


async def test_a_command_runs_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "project")
    found = await resolve(["C"], {"C": printing("import os; print(os.getcwd())")})
    assert found["C"] == str(tmp_path / "home"), "what is in a project does not change what it does"


async def test_variables_can_come_from_another_environment() -> None:
    found = await resolve(["A"], {"A": Secret(env="FP_ELSEWHERE")}, env={"FP_ELSEWHERE": "another"})
    assert found["A"] == "another"


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (Secret(env="FP_TEST_NOT_SET"), "the environment variable FP_TEST_NOT_SET: it is not set"),
        (Secret(file="/nowhere/at/all"), "the file /nowhere/at/all: No such file or directory"),
        (Secret(file="/dev/zero"), "the file /dev/zero: it is not a file"),
        (Secret(command=("/nowhere/program",)), "the command /nowhere/program: it could not be started"),
        (printing("print('hush-hush'); raise SystemExit(3)"), "exit code 3"),
        (printing("import sys; sys.exit('hush-hush')"), "exit code 1"),
        (printing("print('x' * 70000, 'hush-hush')"), f"more than {LARGEST:,} bytes"),
        (printing("print('abc')"), "shorter than 4"),
        (printing("print('   ')"), "it is empty"),
        (printing("import os; os.write(1, b'hush-hush\\xff')"), "not valid UTF-8"),
        (printing("print('hush-hush\\0')"), "NUL"),
    ],
)
async def test_what_cannot_be_had_names_the_reference_and_never_the_value(secret: Secret, said: str) -> None:
    with pytest.raises(NoSecret) as raised:
        await resolve(["TOKEN"], {"TOKEN": secret})
    message = str(raised.value)
    assert said in message
    assert "TOKEN" in message
    if secret.command is None or "hush-hush" not in " ".join(secret.command):
        assert "hush-hush" not in message
    assert "hush-hush" not in raised.value.why
    assert raised.value.__cause__ is None, "what was caught may have the value in it"


async def test_a_command_that_hangs_is_ended_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkpoint.agent.secrets.secret.TIMEOUT", 0.2)
    with pytest.raises(NoSecret, match="did not end within"):
        await resolve(["T"], {"T": Secret(command=("sleep", "60"))})


async def test_a_secret_that_the_agent_does_not_have_is_said() -> None:
    with pytest.raises(NoSecret, match="no secret of that name"):
        await resolve(["OTHER"], {"TOKEN": Secret(env="HOME")})


def test_values_are_neither_shown_nor_written() -> None:
    found = Resolved({"TOKEN": "hush-hush"})
    assert found["TOKEN"] == "hush-hush"
    for shown in (repr(found), str(found), f"{found}", repr(found.masking), str(vars_of(found))):
        assert "hush" not in shown
    for holder in (found, found.masking):
        with pytest.raises(TypeError):
            pickle.dumps(holder)
        with pytest.raises(TypeError):
            msgspec.json.encode(holder)
        with pytest.raises(TypeError):
            json.dumps(holder)
    assert copy.copy(found) is copy.deepcopy(found) is found
    with pytest.raises(KeyError, match="those that it names: TOKEN"):
        found["OTHER"]
    assert found.get("OTHER") is None


def vars_of(value: object) -> object:
    return getattr(value, "__dict__", None)


# Masking.

FORMS = {
    "as it is": TOKEN,
    "in JSON": json.dumps({"t": TOKEN}),
    "in JSON with all its letters": json.dumps({"t": TOKEN}, ensure_ascii=False),
    "in JSON within JSON": json.dumps(json.dumps({"t": TOKEN})),
    "in JSON with slashes escaped": json.dumps(TOKEN).replace("/", "\\/"),
    "as msgspec writes JSON": msgspec.json.encode({"t": TOKEN}).decode(),
    "in an address": f"https://x.example/?t={quote(TOKEN, safe='')}",
    "in a path": f"https://x.example/{quote(TOKEN)}",
    "in a form": f"t={quote_plus(TOKEN)}",
    "in an address with small escapes": re.sub("%..", lambda one: one[0].lower(), quote(TOKEN, safe="")),
    "in Python": repr([TOKEN]),
    "in HTML": f"<b>{html.escape(TOKEN)}</b>",
    "in hex": TOKEN.encode().hex(),
    "in base64": base64.b64encode(TOKEN.encode()).decode(),
    "in base64 after one letter": base64.b64encode(f"u{TOKEN}".encode()).decode(),
    "in base64 after two": base64.b64encode(f"u:{TOKEN}!".encode()).decode(),
    "in base64 for addresses": base64.urlsafe_b64encode(f"user:{TOKEN}".encode()).decode(),
}


@pytest.mark.parametrize("how", FORMS)
def test_a_value_is_masked_in_each_form_that_programs_print_it_in(how: str) -> None:
    masked = Masking([TOKEN]).text(f"before {FORMS[how]} after")
    assert STARS in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert Masking([TOKEN]).text(masked) == masked
    for piece in (TOKEN[:8], quote(TOKEN[4:], safe=""), base64.b64encode(TOKEN.encode()).decode()[4:12]):
        assert piece not in masked


def test_a_value_with_line_breaks_is_masked_as_a_whole_and_line_by_line() -> None:
    masking = Masking([KEY])
    assert masking.text(f"<{KEY}>") == f"<{STARS}>"
    assert masking.text(KEY.replace("\n", "\r\n")) == STARS
    assert masking.text(json.dumps(KEY)) == f'"{STARS}"'
    numbered = "\n".join(f"  {n}  {line}" for n, line in enumerate(KEY.split("\n")))
    assert masking.text(numbered) == f"  0  -----BEGIN KEY-----\n  1  {STARS}\n  2  {STARS}\n  3  -----END KEY-----"


def test_values_that_overlap_or_begin_alike_are_masked_whole() -> None:
    assert Masking(["abcdef", "efghij"]).text("x abcdefghij y") == f"x {STARS} y"
    assert Masking(["abcd", "abcdefgh"]).text("abcdefgh abcd abcdef") == f"{STARS} {STARS} {STARS}ef"
    assert Masking(["aaaa"]).text("aaaaaa") == STARS
    assert Masking(["abcd"]).text("abcdabcd") == STARS * 2


def test_text_without_a_value_stays_the_very_same() -> None:
    text = "nothing to see " * 1000
    assert Masking([TOKEN]).text(text) is text
    assert Masking().text(text) is text
    assert not Masking()


def test_a_value_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be masked"):
        Masking(["abc"])


def test_two_maskings_together_hide_the_values_of_both() -> None:
    both = Masking(["first-one"]) | Masking(["second-one"])
    assert both.text("first-one second-one") == f"{STARS} {STARS}"
    assert "".join([both.stream().feed("a second"), ""]) == "a "


def test_parts_are_masked_and_files_with_a_value_in_them_are_left_out() -> None:
    masking = Masking(["hush-hush"])
    inside = base64.b64encode(b"\x00\xff binary hush-hush \xfe").decode()
    clean = Image("image/png", base64.b64encode(b"\x89PNG").decode())
    parts = (
        Text("a hush-hush b"),
        clean,
        Image("image/png", inside),
        File("hush-hush.txt", "text/plain", url="https://x.example/?t=hush-hush"),
    )
    assert masking.parts(parts) == (
        Text(f"a {STARS} b"),
        clean,
        Text("[image/png left out: a secret is in it]"),
        File(f"{STARS}.txt", "text/plain", url=f"https://x.example/?t={STARS}"),
    )


def test_json_stays_json() -> None:
    masking = Masking(["nabc-quote"])
    text = '{"nabc-quote": ["\\nabc-quote", 1.50, {"x": "nabc-quote\\""}]}'
    masked = masking.json(text)
    assert json.loads(masked) == {STARS: ["\nabc-quote", 1.5, {"x": f'{STARS}"'}]}
    untouched = '{"b": 1.50,  "a": 2}'
    assert masking.json(untouched) == untouched


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


@settings(max_examples=150, deadline=None, database=None)
@given(
    values=st.lists(st.text("ab/", min_size=4, max_size=7).filter(lambda v: len(v.strip()) >= 4), max_size=3),
    words=st.lists(st.text("ab/", max_size=6), max_size=8),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    data=st.data(),
)
def test_a_stream_is_masked_as_the_whole_text_would_be(
    values: list[str], words: list[str], cuts: list[int], data: st.DataObject
) -> None:
    masking = Masking(values)
    mixed = [data.draw(st.sampled_from([word, *values])) for word in words]
    text = "".join(mixed)
    stream = masking.stream()
    shown = "".join([*(stream.feed(piece) for piece in pieces(text, cuts)), stream.end()])
    assert shown == masking.text(text)
    assert not any(value in shown for value in values)


def test_a_value_that_comes_letter_by_letter_is_masked() -> None:
    for value in (TOKEN, KEY):
        stream = Masking([value]).stream()
        text = f"before {value} after, and again {json.dumps(value)}"
        assert "".join([*map(stream.feed, text), stream.end()]) == Masking([value]).text(text)


def test_what_cannot_be_a_value_is_shown_at_once() -> None:
    stream = Masking(["hush-hush"]).stream()
    assert stream.feed("all of this\n") == "all of this\n"
    assert stream.feed("and hus") == "and "
    assert stream.feed("band") == "husband"
    assert stream.feed("hush") == ""
    assert stream.end() == "hush"


def test_a_large_output_is_masked_in_no_time() -> None:
    value = base64.b64encode(os.urandom(3000)).decode()
    masking = Masking([value, KEY])
    text = ("x" * 997 + "/n") * 1000 + value
    assert masking.text(text).endswith(f"/n{STARS}")
    stream = masking.stream()
    shown = [stream.feed(text[n : n + 65536]) for n in range(0, len(text), 65536)]
    assert "".join([*shown, stream.end()]) == masking.text(text)


def test_digits_in_json_are_masked_too() -> None:
    masking = Masking(["12345678"])
    assert masking.json('{"pin":12345678,"n":[1,true,2.5]}') == '{"pin":"***","n":[1,true,2.5]}'
    change = StateChange((("a", "12345678"), ("pin 12345678", '"x"')), ("gone",))
    assert masking.change(change) == StateChange((("a", '"***"'), ("pin ***", '"x"')), ("gone",))
    assert Masking().change(change) is change


async def test_what_is_at_hand_is_masked_before_anybody_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    (tmp_path / "run").write_text("")
    secrets = {
        "E": Secret(env="FP_HERE"),
        "F": Secret(file=str(tmp_path / "key")),
        "GONE": Secret(env="FP_GONE"),
        "C": printing(f"import os; os.remove({str(tmp_path / 'run')!r}); print('from a command')"),
    }
    masking = await masking_of(secrets, env={"FP_HERE": "from env"})
    assert masking.text("from env, from a file, from a command") == "***, ***, from a command"
    assert (tmp_path / "run").exists(), "no command is run for it"


# Agents and tools.


@tool(secrets=["B_KEY", "A_KEY", "B_KEY"])
def uses_two(ctx: ToolContext) -> str:
    """Uses two."""
    return ", ".join(ctx.secrets)


@tool(secrets="shell")
def runs(ctx: ToolContext, command: str) -> str:
    """Runs whatever a model wants."""
    return f"{command} {', '.join(ctx.secrets)}"


TWO = {"A_KEY": Secret(env="A"), "B_KEY": Secret(command=("pass", "b"), shell=True), "C_KEY": Secret(file="/c")}


def test_an_agent_gives_a_tool_what_it_names_and_a_shell_what_is_for_commands() -> None:
    agent = Agent("scripted/echo", tools=[uses_two, runs], secrets=TWO)
    assert agent.secrets_for(uses_two) == ("A_KEY", "B_KEY")
    assert agent.secrets_for(runs) == ("B_KEY",)
    assert agent.secrets_for(shell) == ("B_KEY",), "the built-in one"
    assert Agent("scripted/echo", tools=[runs, shell]).secrets_for(shell) == ()
    with pytest.raises(BadAgent, match="its tool uses_two needs the secret B_KEY, which is not among its secrets"):
        Agent("scripted/echo", tools=[uses_two], secrets={"A_KEY": Secret(env="A")})


def test_agents_with_equal_secrets_are_equal() -> None:
    one, other = (Agent("scripted/echo", secrets=dict(order)) for order in (TWO.items(), reversed(TWO.items())))
    assert one == other
    assert hash(one) == hash(other)
    assert one.replace(name="x").secrets == TWO
    assert one != one.replace(secrets={})
    assert one.manifest == one.replace(secrets={}).manifest, "no model is told of them"


@pytest.mark.parametrize("wrong", ["B_KEY", 7, [7], None])
def test_the_secrets_of_a_tool_are_a_list_of_names(wrong: Any) -> None:
    with pytest.raises(BadTool, match="its secrets must be a list of their names"):
        tool(name="wants", secrets=wrong)(lambda: None)


def test_a_tool_with_secrets_needs_a_context_to_get_them_from() -> None:
    with pytest.raises(BadTool, match="no argument of the class ToolContext"):
        tool(name="wants", secrets=["A_KEY"])(lambda: None)


def test_a_stored_agent_has_references_alone_and_comes_back() -> None:
    agent = Agent("scripted/echo", tools=[uses_two, runs, shell], secrets=TWO)
    document = json.loads(agent.to_json())
    assert document["secrets"] == {
        "A_KEY": {"env": "A"},
        "B_KEY": {"command": ["pass", "b"], "shell": True},
        "C_KEY": {"file": "/c"},
    }
    assert {one["name"]: one.get("secrets") for one in document["tools"]} == {
        "uses_two": ["A_KEY", "B_KEY"],
        "runs": "shell",
        "shell": "shell",
    }
    assert bind(agent.to_json()) == agent
    with pytest.raises(BadAgent, match=r"it has secrets \(A_KEY, B_KEY, C_KEY\)"):
        portable_document(agent.replace(tools=[]))


def test_a_tool_that_wants_other_secrets_than_it_was_stored_with_is_another() -> None:
    document = json.loads(Agent("scripted/echo", tools=[uses_two], secrets=TWO).to_json())
    document["tools"][0]["secrets"] = ["A_KEY"]
    with pytest.raises(CannotResume, match="tool uses_two: the secrets that it is given have changed"):
        bind(json.dumps(document))


async def test_a_shell_masks_what_it_says_while_it_runs_and_what_it_keeps_in_a_file(tmp_path: Path) -> None:
    told: list[str] = []
    value = "s3cr3t-of-ours"
    context = ToolContext(
        "call-1", workspace=tmp_path, progress=told.append, secrets=Resolved({"MINE": value, "OTHER": "unused-value"})
    )
    command = (
        "for n in 1 2 3 4 5; do printf '%s' ${MINE:0:5}; printf '%s\\n' ${MINE:5}; done; printf '\\377\\n'; "
        "for n in {1..3000}; do echo \"$n $MINE unused-value\"; done; printf '%s' ${MINE:0:5}"
    )
    result = await shell(context, command=command)
    assert result.startswith("***\n***\n***\n***\n***\n\N{REPLACEMENT CHARACTER}\n1 *** ***\n")
    assert result.endswith("3000 *** ***\ns3cr3\n[exit code 0]"), "the beginning of a value, and no more of it came"
    (file,) = (tmp_path / ".forkpoint" / "output").glob("output-*")
    kept = file.read_bytes()
    assert kept.startswith(b"***\n***\n***\n***\n***\n\xff\n1 ***"), "other bytes stay as they are"
    assert value not in "".join(told)
    assert value.encode() not in kept


async def test_what_a_tool_raises_or_returns_is_masked_before_it_is_cut() -> None:
    @tool(output_limit=40)
    def shouts(ctx: ToolContext, raises: bool) -> str:
        said = "x" * 27 + "s3cr3t-of-ours" + "y" * 40
        if raises:
            raise ValueError(said)
        return said

    for raises in ("true", "false"):
        context = ToolContext("call-1", secrets=Resolved({"MINE": "s3cr3t-of-ours"}))
        result = await run_call(shouts, ToolCall("call-1", "shouts", f'{{"raises":{raises}}}'), context)
        (part,) = result.parts
        assert isinstance(part, Text)
        assert "s3" not in part.text
        assert "left out" in part.text
