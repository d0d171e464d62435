"""Ids are UUIDv7 in one spelling: they sort by time, and nothing else passes for one."""

import time
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.ids import id_beside, id_from_bytes, id_to_bytes, new_id

quick = settings(max_examples=100, deadline=None, database=None)

microseconds = st.integers(0, (1 << 48) * 1000 - 1)
ID = "0190a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


@quick
@given(now=microseconds)
def test_an_id_is_a_uuid_of_version_7_that_tells_when_it_was_made(now: int) -> None:
    id = new_id(now)
    parsed = uuid.UUID(id)
    assert parsed.version == 7
    assert parsed.variant == uuid.RFC_4122
    assert str(parsed) == id, "an id is spelled as everybody spells a UUID"
    assert parsed.int >> 80 == now // 1000, "the first 48 bits are milliseconds since 1970"


def test_an_id_is_of_this_moment_unless_told_otherwise() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid.UUID(new_id()).int >> 80
    assert before <= made <= time.time_ns() // 1_000_000


@quick
@given(times=st.lists(microseconds, min_size=2, max_size=20, unique_by=lambda now: now // 1000))
def test_ids_sort_by_the_time_they_were_made_as_text_and_as_bytes(times: list[int]) -> None:
    ids = [new_id(now) for now in sorted(times)]
    assert sorted(ids) == ids
    assert sorted(map(id_to_bytes, ids)) == list(map(id_to_bytes, ids))


def test_ids_of_one_moment_are_all_different() -> None:
    assert len({new_id(0) for _ in range(10_000)}) == 10_000


@quick
@given(raw=st.binary(min_size=16, max_size=16))
def test_an_id_comes_back_from_its_bytes(raw: bytes) -> None:
    id = id_from_bytes(raw)
    assert id_to_bytes(id) == raw
    assert uuid.UUID(id).bytes == raw


@quick
@given(now=microseconds)
def test_a_new_id_comes_back_from_its_bytes(now: int) -> None:
    id = new_id(now)
    assert id_from_bytes(id_to_bytes(id)) == id


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ID.upper(),
        ID[:-1] + "A",
        ID.replace("-", ""),
        f"{{{ID}}}",
        f"urn:uuid:{ID}",
        f" {ID}",
        f"{ID} ",
        f"{ID}\n",
        ID[:-1],
        ID + "0",
        ID.replace("-", "_"),
        ID.replace("-", " "),
        ID[:7] + "-" + ID[7] + ID[9:],  # a dash in another place
        ID[:-1] + "g",
        ID[:-1] + "\0",
        ID[:-2] + "  ",
        ID[:-1] + "２",
        ID[:-1] + "\ud800",
        "-" * 36,
        ID[:-2] + "--",
        " " * 36,
        "0" * 36,
        "0x90a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b",
        "x" * 10_000,
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_what_is_not_an_id_in_its_one_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        id_to_bytes(text)


@quick
@given(
    text=st.text(st.sampled_from("0123456789abcdefABCDEF-_ \n{}"), min_size=30, max_size=40)
    | st.text(min_size=36, max_size=36)
)
def test_no_other_text_passes_for_an_id(text: str) -> None:
    try:
        raw = id_to_bytes(text)
    except ValueError:
        return
    assert id_from_bytes(raw) == text


@quick
@given(raw=st.binary(min_size=16, max_size=16), place=st.integers(0, 35), mark=st.characters())
def test_an_id_with_one_other_character_is_refused_or_another_id(raw: bytes, place: int, mark: str) -> None:
    id = id_from_bytes(raw)
    changed = id[:place] + mark + id[place + 1 :]
    try:
        found = id_to_bytes(changed)
    except ValueError:
        assert changed != id
        return
    assert (found == raw) == (changed == id), "two spellings stand for one id"


def test_an_id_beside_another_is_always_the_same_and_sorts_with_it() -> None:
    one, other = new_id(1_000_000), new_id(2_000_000)
    assert id_beside(one, "key") == id_beside(one, "key") != id_beside(one, "other key")
    assert id_beside(one, "key") != id_beside(other, "key")
    assert id_beside(one, "key") < other < id_beside(new_id(3_000_000), "key")
    assert id_from_bytes(id_to_bytes(id_beside(one, "key"))) == id_beside(one, "key")
    assert id_beside(one, "\udfff")[14] == "7"
