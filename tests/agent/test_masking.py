"""A value is found in whatever spelling a program prints it, whole or in pieces, and at a cost that is linear."""

import base64
import html
import json
import random
import shlex
import shutil
import subprocess
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.agent.secrets.masking import GAP, Masking

VALUE = "p<a&ss'w\"ord-\\4711$x Zq"  # with all that anybody escapes
MASKING = Masking([VALUE])


def printed(command: str) -> str:
    """What a shell prints that has the value in $V."""
    env = {"V": VALUE, "PATH": "/usr/bin:/bin"}
    return subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, check=True).stdout


SPELLINGS = {
    "as it is": VALUE,
    "JSON": json.dumps(VALUE),
    "JSON of Go": json.dumps(VALUE).replace("<", "\\u003c").replace("&", "\\u0026"),
    "JSON in JSON in JSON": json.dumps(json.dumps(json.dumps(VALUE))),
    "Python": repr(VALUE),
    "HTML": html.escape(VALUE),
    "HTML with numbers": "".join(f"&#{ord(one)};" if not one.isalnum() else one for one in VALUE),
    "an address": urllib.parse.quote(VALUE, safe=""),
    "a form": urllib.parse.quote_plus(VALUE),
    "an address in an address": urllib.parse.quote(urllib.parse.quote(VALUE, safe=""), safe=""),
    "CSV": VALUE.replace('"', '""'),
    "SQL": VALUE.replace("'", "''"),
    "shlex": shlex.quote(VALUE),
    "single quotes": "'" + VALUE.replace("'", "'\\''") + "'",
    "dollar quotes": "$'" + VALUE.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\x24") + "'",
    "octal": "".join(one if one.isalnum() else f"\\{ord(one):03o}" for one in VALUE),
    "backslashes": "".join(one if one.isalnum() else f"\\{one}" for one in VALUE),
    "letter by letter": " ".join(VALUE),
    "hex": VALUE.encode().hex(),
    "hex with colons": VALUE.encode().hex(":").upper(),
    "base64": base64.b64encode(VALUE.encode()).decode(),
    "base64 for addresses": base64.urlsafe_b64encode(f"??{VALUE}".encode()).decode(),
    "base64 in lines": "\n".join(
        base64.encodebytes(f"ab{VALUE}".encode()).decode()[n : n + 9] for n in range(0, 36, 9)
    ),
    "base64 in base64": base64.b64encode(base64.b64encode(VALUE.encode())).decode(),
    "base64 in base64 of more": base64.b64encode(base64.b64encode(f"a{VALUE}".encode())).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_value_is_found_however_it_is_spelled(spelling: str) -> None:
    shown = MASKING.text(f"before {SPELLINGS[spelling]} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert "***" in shown
    left = shown.removeprefix("before ").removesuffix(" after").replace("***", "")
    assert len([one for one in left if one.isalnum()]) <= 8, f"this is left of it: {shown}"


@pytest.mark.parametrize(
    "command",
    [
        'printf %s "head $V tail" | xxd',
        'printf %s "head $V tail" | hexdump -C',
        'printf %s "head.$V tail" | hexdump',
        'printf %s "head $V tail" | od -A x -t x1z',
        'printf %s "$V" | xxd -p',
        'printf %s "$V" | fold -w 7',
        'printf %q "$V"',
        "set | grep ^V=",
        "declare -p V",
        'printf %s "$V" | base64 | base64 -w 20',
    ],
)
def test_a_value_is_found_in_what_programs_print(command: str) -> None:
    program = next((name for name in ("xxd", "hexdump") if name in command), "bash")
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    text = printed(command)
    shown = MASKING.text(text)
    assert "***" in shown
    for part in ("ord", "4711", "6f72", "3437 3131", "34 37 31 31", "6f 72", "726f"):
        assert part not in shown


def test_a_dump_keeps_where_its_lines_are_and_the_lines_of_others() -> None:
    dump = (
        "00000000: 6e6f 7468 696e 6720 6f66 2069 7473 656c  nothing of itsel\n"
        "00000010: 663a 2070 3c61 2673 7327 7722 6f72 642d  f: p<a&ss'w\"ord-\n"
        "00000020: 5c34 3731 3124 7820 5a71 2e              \\4711$x Zq.\n"
    )
    assert MASKING.text(dump) == dump.splitlines(True)[0] + "00000010: ***\n00000020: ***\n"


@pytest.mark.parametrize(
    "text",
    [
        "pass word 4711 Zq",
        "0000: 1234 5678\n00000010: abcd",
        "p a ss w ord 471 1x",
        "100% & more \\u003c",
        "%%%&&&\\\\\\",
        "0" * 99,
    ],
)
def test_what_is_no_value_stays(text: str) -> None:
    assert MASKING.text(text) == text
    stream = MASKING.stream()
    assert "".join(map(stream.feed, text)) + stream.end() == text


@pytest.mark.parametrize("value", ["a-b!", "<&>'\"", "ab cd", "pä$$", "'x'y"])
@pytest.mark.parametrize("spell", [str, json.dumps, html.escape, shlex.quote, urllib.parse.quote, repr])
def test_a_value_of_few_letters_is_found_in_the_usual_spellings_and_nowhere_else(value: str, spell: object) -> None:
    masking = Masking([value])
    assert value not in masking.text(spell(f"it is {value}."))  # type: ignore[operator]
    assert "***" in masking.text(spell(f"it is {value}."))  # type: ignore[operator]
    assert masking.text("abcd xy A-B ab-cd") == "abcd xy A-B ab-cd"


PIECES = st.one_of(
    st.sampled_from([*SPELLINGS.values(), "\n", " ", "%3", "&l", "\\u00", "\\", "00000010: 7061", "0000", "before"]),
    st.sampled_from(["\n" + "." * (GAP - 2), "\n" + "." * (GAP - 1), "\n" + "%20" * (GAP - 2), "\n" + " " * 70]),
    st.integers(0, len(VALUE)).map(lambda n: VALUE[:n]),
    st.integers(0, 200).map(
        lambda n: "00000000: 7068 656c 703c 6126 7373 2777 226f 7264  ph\n00000010: 2d5c 3437 3131 2478 205a 71 xx\n"[
            :n
        ]
    ),
    st.text(max_size=5),
)


@given(st.lists(PIECES, max_size=6).map("".join), st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None, database=None)
def test_a_text_in_pieces_is_masked_as_the_whole_is(text: str, seed: int) -> None:
    chance, stream, shown, at = random.Random(seed), MASKING.stream(), "", 0
    while at < len(text):
        size = chance.randint(1, 12)
        shown += stream.feed(text[at : at + size])
        at += size
    assert shown + stream.end() == MASKING.text(text)


def test_ten_times_the_text_is_ten_times_the_work_and_not_more() -> None:
    """Counted, not timed: how often the text is passed over does not depend on what stands in it."""
    masking = Masking([f"value-{number}-Zq81" for number in range(5)])
    line = 'line 4711: {"path": "/usr/lib", "escape": "\\u003c%3C&lt;"} value-\n'
    stream = masking.stream()
    held = 0
    for _ in range(2_000):
        stream.feed(line)
        held = max(held, len(stream._held))
    assert held < 2 * len(line), "what is held back does not grow"


@pytest.mark.parametrize("before", ["", "p"], ids=["at the start of a line", "after a letter that begins a value"])
@pytest.mark.parametrize(
    "piece", [".", " ", "\t", "\n", "\u0436", "\u4e2d", "%20", "\\n", "&nbsp;", "\\u002e", "'\\''"]
)
def test_what_has_no_letters_is_let_go_soon_though_it_decides_nothing(before: str, piece: str) -> None:
    stream = MASKING.stream()
    shown = stream.feed(before)
    held = 0
    for _ in range(4 * GAP):
        shown += stream.feed(piece)
        held = max(held, len(stream._held))
    assert held <= len(before) + GAP * len(piece), "what is held is read again with each piece, so it must not grow"
    assert len(shown) >= 2 * GAP * len(piece), "whoever waits for it sees that it goes on"
    assert shown + stream.end() == before + piece * (4 * GAP)


def test_letters_of_a_value_are_found_across_less_than_a_gap_and_not_across_a_gap() -> None:
    head, tail = VALUE[:5], VALUE[5:]
    for sign in (".", "\u0436", "%20"):
        assert MASKING.text(f"a {head}{sign * (GAP - 1)}{tail} z") == "a *** z"
        apart = f"a {head}{sign * GAP}{tail} z"
        assert MASKING.text(apart) == apart
