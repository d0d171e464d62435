"""Reading server-sent events: whatever the pieces that a network makes of them."""

import itertools
from collections.abc import AsyncGenerator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forkpoint.sse import Frame, FrameReader, frames

STREAM = (
    b'retry: 1000\n\n: heartbeat\n\nid: 7\nevent: text\ndata: {"text":"gr\xc3\xbc\xc3\x9fe"}\n\n'
    b"event: turn\ndata: one\ndata: two\n\ndata:bare\n\n"
)
FRAMES = [Frame("text", '{"text":"grüße"}', "7"), Frame("turn", "one\ntwo"), Frame("message", "bare")]


def read(*pieces: bytes) -> list[Frame]:
    reader = FrameReader()
    return [frame for piece in pieces for frame in reader.feed(piece)]


def test_a_stream_is_read_into_its_frames() -> None:
    assert read(STREAM) == FRAMES


@example(cuts=[52, 52], end=b"\r\n")
@given(cuts=st.lists(st.integers(0, 400), max_size=12), end=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_where_a_stream_is_cut_and_how_its_lines_end_makes_no_difference(cuts: list[int], end: bytes) -> None:
    stream = b"\xef\xbb\xbf" + STREAM.replace(b"\n", end)
    places = [0, *sorted(cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    assert read(*pieces) == FRAMES


def test_a_frame_that_the_end_of_the_stream_cuts_is_none() -> None:
    assert read(b"data: whole\n\ndata: cut\n") == [Frame(data="whole")]


def test_an_id_is_kept_for_whoever_comes_back_and_is_not_the_next_frames_own() -> None:
    reader = FrameReader()
    found = [*reader.feed(b"id: 5\ndata: a\n\ndata: b\n\nid: with\0nul\ndata: c\n\n")]
    assert ([frame.id for frame in found], reader.last_id) == (["5", None, None], "5")


def test_comments_and_blank_lines_alone_are_no_frames() -> None:
    assert read(b": heartbeat\n\n\n\nevent: nothing\n\n") == []


def test_a_long_line_in_many_pieces_is_one_frame() -> None:
    assert read(b"data: ", *[b"x" * 1000] * 1000, b"\n\n") == [Frame(data="x" * 1_000_000)]


@pytest.mark.anyio
async def test_frames_come_as_soon_as_they_are_complete() -> None:
    given: list[int] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        for n, chunk in enumerate((b"data: a\n", b"\ndata: b\n", b"\n")):
            given.append(n)
            yield chunk

    heard = [(frame.data, len(given)) async for frame in frames(chunks())]
    assert heard == [("a", 2), ("b", 3)]
