"""A file that is not as it was written is found out, without a store, and the line is named."""

import json
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.engine.exports.selection import Selection
from forkpoint.history.exports.check import ExportCheck, check
from forkpoint.history.exports.lines import NOTHING, Seal, decoded, digest_of, parted
from forkpoint.store.sqlite import SqliteStore
from forkpoint.testing.conformance.evidence.copies import exported, family


async def _exported() -> bytes:
    async with await SqliteStore.open(None) as store:
        root = await family(store)
        return await exported(store, Selection("family", root.id))


DATA = anyio.run(_exported)
LINES = DATA.splitlines(keepends=True)


def checked(data: bytes) -> ExportCheck:
    return check(data.splitlines(keepends=True))


def test_a_file_is_as_it_was_written() -> None:
    found = checked(DATA)
    assert not found.flaws
    assert (found.conversations, len(found.parts)) == (4, 1)
    assert found.events == sum(line.startswith(b'{"line":"event"') for line in LINES)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_found_and_its_line_is_named(place: int, bit: int) -> None:
    changed = bytearray(DATA)
    changed[place] ^= 1 << bit
    flaws = checked(bytes(changed)).flaws
    assert flaws
    line = DATA.count(b"\n", 0, place) + 1
    assert flaws[0].line in (line, line + 1)  # of a line break, the next line is wrong


@settings(max_examples=40, deadline=None)
@given(st.integers(0, len(DATA) - 1))
def test_a_file_that_was_cut_off_is_found(length: int) -> None:
    flaws = checked(DATA[:length]).flaws
    assert flaws
    assert flaws[-1].line >= DATA.count(b"\n", 0, length)


def test_a_line_that_was_removed_or_doubled_is_found() -> None:
    for number in range(len(LINES)):
        assert check([*LINES[:number], *LINES[number + 1 :]]).flaws, f"line {number + 1} is missing"
        assert check([*LINES[: number + 1], *LINES[number:]]).flaws, f"line {number + 1} is there twice"


def test_what_follows_the_end_is_found() -> None:
    assert check([*LINES, LINES[-1]]).flaws[0].line == len(LINES) + 1


def test_another_version_is_refused() -> None:
    header = json.loads(LINES[0])
    header["version"] = 2
    flaws = check(sealed([header, *map(json.loads, LINES[1:])])).flaws
    assert flaws[0].line == 1
    assert "version 2" in flaws[0].what


def sealed(documents: list[dict[str, Any]]) -> list[bytes]:
    """A file whose line digests were all made anew, as somebody would do who wants to hide a change."""
    before, made, summed = NOTHING, [], sha256()
    for number, document in enumerate(documents):
        kind = document["line"]
        if kind == "end":
            document = document | {"digest": summed.hexdigest()}
        text = json.dumps({key: value for key, value in document.items() if key != "sha256"}, separators=(",", ":"))
        digest = digest_of(NOTHING if kind in ("header", "family", "end") else before, text.encode())
        made.append(f'{text[:-1]},"sha256":"{digest}"}}\n'.encode())
        before = digest
        if number == 0 or kind == "family_end":
            summed.update(digest.encode())
    return made


def test_a_file_with_new_line_digests_is_still_whole() -> None:
    assert not check(sealed([json.loads(line) for line in LINES])).flaws


def nth(kind: str, number: int = 0) -> int:
    return [n for n, line in enumerate(LINES) if line.startswith(f'{{"line":"{kind}"'.encode())][number]


TAMPERED: dict[str, tuple[int, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "the payload of an event": (nth("event"), lambda line: {"payload": line["payload"] + " "}),
    "the envelope of an event": (nth("event"), lambda line: {"envelope": line["envelope"] + " "}),
    "whose an event is": (nth("event"), lambda line: {"turn": json.loads(LINES[nth("turn", -1)])["id"]}),
    "an erased payload": (nth("event"), lambda line: {"payload": None, "salt": None}),
    "the base of a segment": (nth("segment", 1), lambda line: {"base": [1, line["base"][1] - 1]}),
    "a title": (nth("conversation"), lambda line: {"title": "Another"}),
    "a name": (nth("conversation"), lambda line: {"name": "another"}),
    "tags": (nth("conversation"), lambda line: {"tags": "{}"}),
    "settings": (nth("conversation"), lambda line: {"settings": '{"b":1}'}),
    "approvals": (nth("conversation"), lambda line: {"approvals": "[1]"}),
    "a revision": (nth("conversation"), lambda line: {"revision": 7}),
    "where a head stands": (nth("conversation"), lambda line: {"head": None}),
    "what a conversation inherited": (nth("conversation", 1), lambda line: {"inherited": "{}", "own_from": 0}),
    "where a conversation came from": (nth("conversation", 1), lambda line: {"lineage_source": None}),
    "how a conversation began": (nth("conversation"), lambda line: {"born": line["born"].replace("root", "fork")}),
    "the body of a record": (nth("record", 2), lambda line: {"body": line["body"].replace('time":1', 'time":2')}),
    "a record without its body": (nth("record", 2), lambda line: {"body": None}),
    "the cost of a turn": (nth("turn"), lambda line: {"usage": '{"calls":9}'}),
    "the outcome of a turn": (nth("turn"), lambda line: {"outcome": "cancelled"}),
    "who asked for a turn": (nth("turn"), lambda line: {"by": "somebody else"}),
    "where a turn ends": (nth("turn"), lambda line: {"end": [1, line["end"][1] + 2]}),
    "a charge": (nth("spent", -1), lambda line: {"usage": '{"calls":9}'}),
    "what a deleted conversation had spent": (nth("spent"), lambda line: {"usage": '{"calls":9}'}),
    "the payload of a step": (nth("step"), lambda line: {"payload": line["payload"] + " "}),
    "the envelope of a step": (nth("step"), lambda line: {"envelope": line["envelope"] + " "}),
    "how many events there are": (nth("family_end"), lambda line: {"events": 1}),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_change_is_found_even_if_all_line_digests_were_made_anew(what: str) -> None:
    number, change = TAMPERED[what]
    documents = [json.loads(line) for line in LINES]
    changed = change(documents[number])
    assert documents[number] | changed != documents[number]
    documents[number] = documents[number] | changed
    assert check(sealed(documents)).flaws, f"{what} was changed, and nothing was found"


def test_a_line_says_the_same_after_it_was_read() -> None:
    seal = Seal()
    for raw in LINES:
        assert seal.line(decoded(parted(raw)[0])) == raw
