"""The stream of a conversation's events, over real sockets: nothing is missing and nothing comes twice."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.server.support.serving import Served, ServerProcess, served
from tests.server.support.streaming import PATIENCE, Copy, Reader, Told
from tests.server.support.turning import Api, Gate, Visits, agents_of, asks, holds, obedient, two_tenants, using

from forkpoint.agent import ToolContext, tool
from forkpoint.server.http.keys import Keyring, Keys, add_key, revoke_key
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Fault, Heard, Reply

FAST = ServerSettings(poll=0.02, heartbeat=0.05)
STREAM = "/api/conversations/{id}/events/stream"


def answers(heard: Heard) -> Reply:
    """An obedient model that can also be made to fail or to fall silent, after a few words."""
    if heard.text in {"fail", "hang"}:
        fault = Fault("bad_request", after=2) if heard.text == "fail" else Fault("hang", after=2)
        return Reply("some words, and more", fault=fault, piece=5)
    return obedient(heard)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(agents=agents_of(answers=answers, name="streams"), settings=FAST) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


def ids(api: Api, id: str) -> list[str]:
    return [event["id"] for event in events(api, id)]


def events(api: Api, id: str) -> list[Any]:
    items: list[Any] = api.get(f"{id}/events", limit=1000)["items"]
    return items


def read(api: Api, reader: Reader, id: str, copy: Copy | None = None) -> Copy:
    """Reads until the reader has what the conversation has now."""
    copy, wanted = copy or Copy(), ids(api, id)
    while copy.ids != wanted:
        told = reader.next()
        assert told is not None, f"the stream ended: {copy.ids}, and not {wanted}"
        copy.apply(told)
    return copy


def silent(reader: Reader) -> list[Told]:
    """What comes until the stream says nothing but heartbeats, twice: whatever was on its way has come by then."""
    told: list[Told] = []
    beats = 0
    while beats < 2:
        if (one := reader.soon()) is None:
            beats += 1
        else:
            told.append(one)
    return told


# What comes, and in which order.


def test_each_committed_event_comes_once_in_order_and_before_the_end_of_its_turn(server: Served, api: Api) -> None:
    id = api.create()
    with Reader.of(server.url, id) as reader:
        turns = [api.run(id, text).json()["id"] for text in ("one", "two")]
        api.http.patch(f"/api/conversations/{id}/state", json={"set": {"a": 1}})
        told = [*reader.until("turn"), *reader.until("turn")]
        told += silent(reader)
    copy = Copy()
    for one in told:
        copy.apply(one)
    assert copy.events == events(api, id)
    assert copy.events[-1]["kind"] == "state_change"
    for turn in turns:
        about = [
            one.event
            for one in told
            if turn in (one.data.get("turn"), one.data.get("id")) and one.event != "turn_started"
        ]
        last = max(n for n, event in enumerate(about) if event == "event")
        assert about[-1] == "turn", "the end of a turn is the last that is told of it"
        assert last == len(about) - 2


@pytest.mark.parametrize(("message", "outcome"), [("fail", "failed"), ("hang", "cancelled")])
def test_a_turn_that_does_not_commit_is_told_with_its_end_and_leaves_nothing(
    server: Served, api: Api, message: str, outcome: str
) -> None:
    id = api.create()
    api.run(id, "one")
    with Reader.of(server.url, id, after="head") as reader:
        silent(reader)
        running = api.soon(api.run, id, message)
        started = reader.until("text")[0]
        if outcome == "cancelled":
            api.post(f"{id}/turns/{started.data['id']}/cancel")
        told = reader.until("turn")
        running.result(PATIENCE)
        assert told[-1].data["id"] == started.data["id"]
        assert told[-1].data["outcome"] == outcome
        assert [one for one in told if one.event == "event" or one.id is not None] == []
        api.run(id, "two")
        copy = Copy()
        copy.events = events(api, id)[: -len(_of_last_turn(api, id))]
        read(api, reader, id, copy)


def test_without_provisional_frames_only_events_and_ends_of_turns_come(server: Served, api: Api) -> None:
    id = api.create()
    with Reader.of(server.url, id, provisional="false") as reader:
        api.run(id, "one")
        assert {told.event for told in reader.until("turn")} == {"event", "turn"}


def test_only_events_and_rewinds_have_an_id(server: Served, api: Api) -> None:
    id = api.create()
    with Reader.of(server.url, id) as reader:
        first = api.run(id, "one").json()["id"]
        told = reader.until("turn")  # who has not seen what is rewound need not be told of it
        api.post(f"{id}/rewind", before=first)
        told += reader.until("rewound")
    assert {one.event for one in told if one.id is not None} == {"event", "rewound"}
    assert told[-1] == Told("rewound", {"at": None}, "0")
    lines = reader.raw.decode().splitlines()
    assert lines[0] == "retry: 1000"
    assert all(line.partition(":")[0] in {"retry", "id", "event", "data", ""} for line in lines)


def test_letters_of_all_kinds_and_line_breaks_arrive_as_they_were(server: Served, api: Api) -> None:
    id, text = api.create(), "Grüße\r\n\u2028\u0085 \N{GRINNING FACE}\n\ndata: x\n\nid: 9-9"
    with Reader.of(server.url, id) as reader:
        api.run(id, text)
        told = reader.until("turn")
    message = next(one.data["body"] for one in told if one.event == "event" and one.data["kind"] == "user_message")
    assert message["parts"][0]["text"] == text
    assert "".join(one.data["text"] for one in told if one.event == "text") == f"You said: {text}"
    assert "Grüße".encode() in reader.raw


# Coming back.

Step: TypeAlias = tuple[str, int]
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "note", "rewind", "rewind", "keep", "keep", "fork", "fail", "forget"]),
        st.integers(0, 99),
    ),
    min_size=2,
    max_size=8,
)


@pytest.fixture(scope="module")
def two_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """One in this process and one in another, on one file."""
    folder = tmp_path_factory.mktemp("two")
    store = f"sqlite:///{folder / 'server.db'}"
    agents = agents_of(answers=answers, name="two-streams")
    with (
        served(store, agents, settings=FAST) as here,
        ServerProcess("--model", "scripted/echo", folder=folder, store=store) as there,
    ):
        yield here.url, there.url


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, stride=st.integers(1, 6))
def test_reconnecting_anywhere_while_others_commit_rewind_and_fork_gives_neither_gap_nor_duplicate(
    two_servers: tuple[str, str], steps: list[Step], stride: int
) -> None:
    copy = Copy()
    with using(two_servers[0]) as here, using(two_servers[1]) as there:
        id = here.create(agent="helper")
        written = here.soon(_write, (here, there), id, steps)
        while not (written.done() and copy.ids == ids(here, id)):
            with Reader.of(two_servers[0], id, last=copy.cursor) as reader:
                for _ in range(stride):
                    if (told := reader.soon()) is None:
                        break
                    copy.apply(told)
        written.result()
        assert copy.events == events(here, id)
        with Reader.of(two_servers[0], id, last=copy.cursor, provisional="false") as reader:
            assert silent(reader) == [], "there is no more"


def test_one_who_stays_hears_all_that_another_process_commits(two_servers: tuple[str, str]) -> None:
    with using(two_servers[0]) as here, using(two_servers[1]) as there:
        id = there.create()
        with Reader.of(two_servers[0], id) as reader:
            _write((there, there), id, [("turn", 0), ("note", 1), ("turn", 2), ("rewind", 1), ("turn", 3)])
            _write((there, there), id, [("fork", 0), ("turn", 1), ("keep", 0), ("turn", 2), ("keep", 1)])
            copy = read(here, reader, id)
            assert copy.events == events(here, id)
            there.http.delete(f"/api/conversations/{id}")
            assert reader.rest()[-1].event == "deleted"


def test_every_event_is_a_place_to_go_on_from(server: Served, api: Api) -> None:
    id = api.create()
    for text in ("one", "two"):
        api.run(id, text)
    wanted = ids(api, id)
    for place, cursor in enumerate(("0", *wanted)):
        for ways in ({"last": cursor}, {"after": cursor}, {"after": str(place)}, {"last": cursor, "after": "head"}):
            with Reader.of(server.url, id, provisional="false", **ways) as reader:
                copy = Copy()
                copy.events = events(api, id)[:place]
                assert read(api, reader, id, copy).ids == wanted
                assert reader.soon() is None, "and nothing comes again"
    with Reader.of(server.url, id, after="head") as reader:
        assert silent(reader) == []


# A cursor that is no longer on the path.


def rewound_to(server: Served, id: str, cursor: str, key: str | None = None, **query: str) -> str:
    """Where a reader with this cursor is sent to: it is told once."""
    with Reader.of(server.url, id, last=cursor, provisional="false", key=key, **query) as reader:
        told = silent(reader)
    assert [one.event for one in told].count("rewound") == 1
    assert told[0].event == "rewound"
    assert told[0].id is not None
    return told[0].id


def test_a_rewind_while_nobody_listened_is_told_once_with_the_common_position(server: Served, api: Api) -> None:
    id = api.create()
    turns = [api.run(id, text).json() for text in ("one", "two", "three")]
    cursor, common = ids(api, id)[-1], turns[0]["events"][-1]["id"]
    api.post(f"{id}/rewind", at=turns[0]["id"])
    assert rewound_to(server, id, cursor) == common
    api.run(id, "other")
    assert rewound_to(server, id, cursor) == common
    other = ids(api, id)[-1]
    api.post(f"{id}/rewind", at=turns[0]["id"])
    api.run(id, "another")
    assert rewound_to(server, id, other) == common, "after several rewinds in a row"
    assert rewound_to(server, id, cursor) == common
    api.post(f"{id}/rewind", before=turns[0]["id"])
    assert rewound_to(server, id, cursor) == "0"
    api.run(id, "new")
    assert rewound_to(server, id, cursor) == "0"


@pytest.mark.parametrize("other", [False, True], ids=["the same server", "another server"])
def test_a_reader_is_told_once_where_a_keep_left_its_path_and_then_what_follows(
    two_servers: tuple[str, str], other: bool
) -> None:
    with using(two_servers[0]) as here, using(two_servers[1]) as there:
        keeper = there if other else here
        id = here.create(agent="helper")
        first = _done(here.run(id, "one"))
        branch = _done(here.post(f"{id}/fork"))["id"]
        _done(here.run(id, "two"))
        _done(here.run(branch, "other"))
        with Reader.of(two_servers[0], id, provisional="false") as reader:
            copy = read(here, reader, id)
            _done(keeper.post(f"{id}/keep", branch=branch))
            read(here, reader, id, copy)
            assert copy.rewinds == [first["events"][-1]["id"]]
            assert copy.events == events(here, id) == events(here, branch)
            _done(here.run(id, "on"))
            assert read(here, reader, id, copy).events == events(here, id)
            assert len(copy.rewinds) == 1


def test_a_cursor_whose_branch_was_deleted_begins_anew(server: Served, api: Api) -> None:
    id = api.create()
    turns = [api.run(id, text).json() for text in ("one", "two")]
    cursor = ids(api, id)[-1]
    aside = api.post(f"{id}/rewind", at=turns[0]["id"]).json()["aside"]["id"]
    assert api.http.delete(f"/api/conversations/{aside}").status_code == 204
    copy = Copy()
    copy.events = [event for turn in turns for event in turn["events"]]
    with Reader.of(server.url, id, last=cursor) as reader:
        read(api, reader, id, copy)
    assert copy.rewinds == ["0"]


def test_a_cursor_of_a_fork_goes_back_to_where_the_two_part(server: Served, api: Api) -> None:
    id = api.create()
    first = api.run(id, "one").json()
    fork = api.post(f"{id}/fork").json()["id"]
    for one in (id, fork):
        api.run(one, "two")
    assert rewound_to(server, id, ids(api, fork)[-1]) == first["events"][-1]["id"]


def test_a_cursor_that_never_was_begins_anew(server: Served, api: Api) -> None:
    id = api.create()
    api.run(id, "one")
    for cursor in ("9999-1", "9223372036854775807-1", "1-9223372036854775807", "77", "999999999999999999"):
        assert rewound_to(server, id, cursor) == "0"


@pytest.mark.parametrize("cursor", ["x", "1-", "-1", "1-1-1", "01-1", "\xb2", "9" * 19, "9" * 5000, "1-" + "9" * 30])
def test_nonsense_for_a_cursor_is_refused(server: Served, api: Api, cursor: str) -> None:
    id = api.create()
    for query in ({"last": cursor}, {"after": cursor}):
        with Reader.of(server.url, id, **query) as reader:
            assert reader.status == 422
            assert json.loads(reader.answer.read())["error"]["param"] == "after"


def test_a_cursor_of_another_tenant_says_nothing_about_it() -> None:
    with (
        served(agents=agents_of(), keyring=two_tenants(), settings=FAST) as server,
        using(server.url, "key-of-one") as one,
        using(server.url, "key-of-two") as two,
    ):
        theirs, ours = one.create(id="same-name"), two.create(id="same-name")
        one.run(theirs, "a secret")
        two.run(ours, "Hello")
        assert rewound_to(server, ours, ids(one, theirs)[-1], key="key-of-two") == "0"
        with Reader.of(server.url, theirs, key="key-of-two") as reader:
            assert reader.status == 404
        with Reader.of(server.url, "same-name", key="key-of-two") as reader:
            read(two, reader, ours)
            assert b"secret" not in reader.raw


# Heartbeats.


def test_a_silent_stream_says_that_it_is_alive_and_asks_the_store_for_nothing(server: Served, api: Api) -> None:
    id = api.create()
    api.run(id, "one")
    start = time.monotonic()
    with Reader.of(server.url, id) as reader:
        silent(reader)
        asked = _asked(api)
        for _ in range(3):
            assert silent(reader) == []
        assert _asked(api) == asked
    assert time.monotonic() - start >= 8 * FAST.heartbeat - 0.01


# Readers that are slow, or come late.

FLOOD, PIECE = 4000, 4000  # together far more than sockets buffer


@tool(name="flood")
async def flood(ctx: ToolContext) -> str:
    """Says very much of how far it is."""
    for number in range(FLOOD):
        ctx.progress(f"{number} {'.' * PIECE}")
        if number % 10 == 0:
            await asyncio.sleep(0)
    return "done"


def test_a_slow_reader_is_told_of_the_gap_and_loses_nothing_that_is_committed() -> None:
    gate = Gate()
    with served(agents=agents_of(flood, gate.tool, name="flood"), settings=FAST) as server, using(server.url) as api:
        id = api.create()
        api.run(id, "one")
        with Reader.of(server.url, id, after="head", small=True) as slow, Reader.of(server.url, id) as other:
            running = api.soon(api.run, id, asks(("flood", {}), ("hold", {"line": "x"})))
            gate.reached()
            other.until(lambda told: told.event == "call_ended" or (told.event == "snapshot" and _ended(told)))
            boxes = list(server.services.watching.mailboxes("default", id))
            assert max(box.size for box in boxes) <= 2 * 1024 * 1024, "what waits for a reader is bounded"
            told = slow.until("snapshot")
            assert told[-2].event == "gap"
            assert told[-2].data["dropped"] > FLOOD // 2
            assert _ended(told[-1]), "the snapshot has what was missed"
            said = [update for update in told[-1].data["updates"] if update["type"] == "call_progress"]
            assert len(said) <= 1
            gate.open()
            assert running.result(PATIENCE).json()["outcome"] == "committed"
            told = slow.until("turn")
            assert [one.data["id"] for one in told if one.event == "event"] == ids(api, id)[-_count(told) :]
            assert _count(told) == len(_of_last_turn(api, id))
            assert "gap" not in {one.event for one in told}
        assert _metric(api, "forkpoint_stream_gaps_total") >= 1


def test_a_reader_that_stops_reading_holds_up_neither_turns_nor_others_and_hears_how_they_ended() -> None:
    with served(agents=agents_of(flood, name="stuck"), settings=FAST) as server, using(server.url) as api:
        id = api.create()
        with Reader.of(server.url, id, small=True) as stuck, Reader.of(server.url, id) as other:
            turns = [api.run(id, asks(("flood", {}))).json()["id"] for _ in range(2)]
            assert read(api, other, id).events == events(api, id)
            told = [*stuck.until("turn"), *stuck.until("turn")]
            assert [one.data["id"] for one in told if one.event == "turn"] == turns
            assert "gap" in {one.event for one in told}
            copy = Copy()
            for one in told:
                copy.apply(one)
            assert copy.events == events(api, id)


def test_one_who_joins_in_the_middle_hears_all_that_was_told() -> None:
    gate = Gate()
    with served(agents=agents_of(gate.tool, name="join"), settings=FAST) as server, using(server.url) as api:
        id = api.create()
        with Reader.of(server.url, id) as early:
            running = api.soon(api.run, id, holds("x"))
            gate.reached()
            before = early.until("call_started")
            turn = before[0].data["id"]
            path = f"/api/conversations/{id}/turns/{turn}"
            with Reader.of(server.url, id) as late, Reader(server.url, path) as joined:
                first = [reader.until("snapshot") for reader in (late, joined)]
                gate.open()
                rest = [reader.until("turn") for reader in (early, late, joined)]
                running.result(PATIENCE)
    whole = _understood([*before, *rest[0]])
    assert whole["text"] == "Done: held x"
    for snapshot, following in zip(first, rest[1:], strict=True):
        assert [one.event for one in snapshot] == ["snapshot"]
        assert _understood([*snapshot, *following]) == whole


# How streams end.


def test_a_deleted_conversation_ends_its_streams(server: Served, api: Api) -> None:
    id = api.create()
    with Reader.of(server.url, id) as reader:
        silent(reader)
        api.http.delete(f"/api/conversations/{id}")
        assert reader.rest() == [Told("deleted", {}, None)]


def test_a_server_that_stops_says_so_and_waits_for_nobody() -> None:
    with served(settings=FAST) as server, using(server.url) as api:
        id = api.create()
        with Reader.of(server.url, id) as reader:
            start = time.monotonic()
            stopped = api.soon(server.stop)
            assert reader.rest()[-1] == Told("closing", {}, None)
            stopped.result(PATIENCE)
            assert time.monotonic() - start < 5


@pytest.mark.parametrize("busy", [False, True])
def test_a_stream_ends_when_its_key_is_revoked(tmp_path: Path, busy: bool) -> None:
    file = tmp_path / "keys.json"
    key, other = add_key(file, "one").token, add_key(file, "two").token
    with served(keyring=Keyring([Keys(file)]), settings=FAST) as server, using(server.url, other) as api:
        id = api.create()
        with Reader.of(server.url, id, key=key) as reader, Reader.of(server.url, id, key=other) as still:
            silent(reader)
            revoke_key(file, "one")
            deadline = time.monotonic() + PATIENCE
            while reader.more():  # a busy one is never silent for as long as it is between two heartbeats
                assert time.monotonic() < deadline, "it still reads"
                if busy:
                    api.http.patch(f"/api/conversations/{id}/state", json={"set": {"a": time.monotonic()}})
            api.run(id, "one")
            assert still.until("turn")
        with Reader.of(server.url, id, key=key) as reader:
            assert reader.status == 401


def test_a_client_that_goes_leaves_nothing_behind() -> None:
    gate = Gate()
    with Visits() as visits, served(agents=agents_of(gate.tool, name="gone"), settings=FAST) as server:  # noqa: SIM117
        with using(server.url) as api:
            id = api.create()
            running = api.soon(api.run, id, holds("x"))
            gate.reached()
            turn = api.get(f"{id}/turns")["items"][0]["id"]
            tasks = _tasks(server)
            readers = [Reader.of(server.url, id) for _ in range(5)]
            joined = Reader(server.url, f"/api/conversations/{id}/turns/{turn}")
            for reader in (*readers, joined):
                reader.until("snapshot")
            assert len(server.services.watching.mailboxes("default", id)) == 5
            for reader in (*readers, joined):
                reader.close()
            for _ in readers:
                visits.until(f"GET {STREAM} 200")
            visits.until("GET /api/conversations/{id}/turns/{turn} 200")
            assert not server.services.watching.mailboxes("default", id)
            assert _tasks(server) <= tasks
            gate.open()
            assert running.result(PATIENCE).status_code == 200
            assert _metric(api, "forkpoint_streams_open") == 0


# Limits, and HTTP.


def test_too_many_streams_are_refused_until_one_is_left() -> None:
    limits = ServerSettings(max_streams=3, max_streams_per_tenant=2)
    with Visits() as visits, served(agents=agents_of(), keyring=two_tenants(), settings=limits) as server:  # noqa: SIM117
        with using(server.url, "key-of-one") as one, using(server.url, "key-of-two") as two:
            ours, theirs = one.create(), two.create()
            first = Reader.of(server.url, ours, key="key-of-one")
            with Reader.of(server.url, ours, key="key-of-one"):
                _refused(Reader.of(server.url, ours, key="key-of-one"))
                with Reader.of(server.url, theirs, key="key-of-two"):
                    _refused(Reader.of(server.url, theirs, key="key-of-two"))
                    first.close()
                    visits.until(f"GET {STREAM} 200")
                    with Reader.of(server.url, ours, key="key-of-one") as again:
                        assert again.status == 200


def test_with_keys_a_tenant_may_have_a_quarter_of_all_streams() -> None:
    limits = ServerSettings(max_streams=7)
    with served(agents=agents_of(), keyring=two_tenants(), settings=limits) as server:  # noqa: SIM117
        with using(server.url, "key-of-one") as one, using(server.url, "key-of-two") as two:
            ours, theirs = one.create(), two.create()
            with Reader.of(server.url, ours, key="key-of-one") as first:
                assert first.status == 200
                _refused(Reader.of(server.url, ours, key="key-of-one"))
                with Reader.of(server.url, theirs, key="key-of-two") as other:
                    assert other.status == 200


def test_proxies_are_told_to_pass_everything_on_at_once(server: Served, api: Api) -> None:
    with Reader.of(server.url, api.create()) as reader:
        headers = reader.answer.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["x-accel-buffering"] == "no"
        assert "no-store" in headers["cache-control"]
        assert headers["x-request-id"]
        assert "content-length" not in headers


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "POST"])
def test_other_methods_are_refused(server: Served, api: Api, method: str) -> None:
    found = api.http.request(method, f"/api/conversations/{api.create()}/events/stream")
    assert found.status_code == 405
    assert found.headers["allow"] == "GET"


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize("version", ["--http1.0", "--http1.1"])
def test_curl_can_follow(server: Served, api: Api, version: str) -> None:
    id = api.create()
    command = ["curl", "-sN", version, f"{server.url}/api/conversations/{id}/events/stream"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        assert curl.stdout.readline() == b"retry: 1000\n"
        api.run(id, "one")
        while curl.stdout.readline() != b"event: turn\n":
            pass
        api.http.delete(f"/api/conversations/{id}")
        assert curl.stdout.read().endswith(b"event: deleted\ndata: {}\n\n")
        assert curl.wait(PATIENCE) == 0


# Helpers.


def _write(apis: tuple[Api, Api], id: str, steps: list[Step]) -> None:
    """Does what the steps say, now through one server and now through the other."""
    asides: list[str] = []
    forks: list[str] = []
    for number, (step, chance) in enumerate(steps):
        api = apis[chance % 2]
        turns = [turn["id"] for turn in api.get(f"{id}/turns")["items"] if turn["outcome"] == "committed"]
        match step:
            case "turn":
                _done(apis[0].run(id, f"message {number}"))
            case "fail":
                assert apis[0].run(id, "fail").status_code >= 400
            case "note":
                _done(api.http.patch(f"/api/conversations/{id}/state", json={"set": {"step": number}}))
            case "rewind" if turns:
                place = {"at" if chance % 3 else "before": turns[chance % len(turns)]}
                aside = _done(api.post(f"{id}/rewind", **place))["aside"]
                asides += [aside["id"]] if aside else []
            case "fork":
                fork = _done(api.post(f"{id}/fork"))["id"]
                _done(apis[0].run(fork, "elsewhere"))
                forks.append(fork)
            case "keep" if forks or asides:
                aside = _done(api.post(f"{id}/keep", branch=(forks + asides)[chance % len(forks + asides)]))["aside"]
                asides += [aside["id"]] if aside else []
            case "forget" if asides:
                assert api.http.delete(f"/api/conversations/{asides.pop()}").status_code == 204
            case _:
                pass


def _done(answer: Any) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json()


def _of_last_turn(api: Api, id: str) -> list[Any]:
    found = events(api, id)
    return [event for event in found if event["turn"] == found[-1]["turn"]]


def _count(told: list[Told]) -> int:
    return sum(one.event == "event" for one in told)


def _ended(told: Told) -> bool:
    """Whether a snapshot has a call that ended."""
    return any(update["type"] == "call_ended" for update in told.data["updates"])


def _understood(told: list[Told]) -> dict[str, Any]:
    """What a listener makes of provisional frames."""
    updates = []
    for one in told:
        if one.event == "snapshot":
            updates += one.data["updates"]
        elif one.event not in {"event", "turn"}:
            updates.append({key: value for key, value in one.data.items() if key != "turn"})
    text = "".join(update["text"] for update in updates if update["type"] == "text")
    calls: dict[int, str] = {}
    for update in updates:
        if update["type"] == "call":
            calls[update["index"]] = calls.get(update["index"], "") + update["arguments"]
    others = [update for update in updates if update["type"] not in {"text", "call"}]
    return {"text": text, "calls": calls, "others": others}


def _refused(reader: Reader) -> None:
    with reader:
        assert reader.status == 429
        assert int(reader.answer.headers["retry-after"]) > 0


def _metric(api: Api, name: str, **labels: str) -> float:
    found = text_string_to_metric_families(api.http.get("/metrics").text)
    samples = [one for family in found for one in family.samples if one.name == name]
    return sum(one.value for one in samples if labels.items() <= one.labels.items())


def _asked(api: Api) -> float:
    """How often the store was asked for something of a conversation."""
    named = ("path", "events", "read", "find", "conversations")
    return sum(_metric(api, "forkpoint_store_seconds_count", operation=name) for name in named)


def _tasks(server: Served) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), server.loop).result(PATIENCE)
