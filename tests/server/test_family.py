"""The stream of a family: what all its members commit, each event once, over real sockets."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.server.support.families import inside, spawn
from tests.server.support.serving import Served, served
from tests.server.support.streaming import PATIENCE, Reader, Told
from tests.server.support.turning import Api, Gate, Visits, agents_of, holds, left_nothing, model, two_tenants, using

from forkpoint.agent import Agent
from forkpoint.backend.results import Turn
from forkpoint.events import Position, Usage
from forkpoint.ids import new_id
from forkpoint.server.agents.catalog import Catalog
from forkpoint.server.http.keys import Keyring, Keys, add_key, revoke_key
from forkpoint.server.live.family import read_cursor
from forkpoint.server.settings import ServerSettings
from forkpoint.testing import Heard, Reply, ScriptedCall
from forkpoint.updates import TextPiece, TurnStarted

FAST = ServerSettings(poll=0.02, heartbeat=0.05)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate()


@pytest.fixture(scope="module")
def server(gate: Gate) -> Iterator[Served]:
    with served(agents=agents_of(gate.tool, name="families"), settings=FAST) as server:
        yield server


@pytest.fixture(scope="module")
def api(server: Served) -> Iterator[Api]:
    with using(server.url) as api:
        yield api


def follow(server: Served, id: str, **options: Any) -> Reader:
    return Reader(server.url, f"/api/conversations/{id}/family/stream", **options)


def committed(api: Api, *conversations: str) -> dict[str, list[str]]:
    """The ids of the events of conversations."""
    return {id: [event["id"] for event in api.get(f"{id}/events", limit=1000)["items"]] for id in conversations}


class Family:
    """What a client has that applies what it is told, and counts what it is told twice."""

    def __init__(self) -> None:
        self.own: dict[str, list[str]] = {}  # what was told of each conversation
        self.ids: list[str] = []
        self.paths: dict[str, str] = {}
        self.members: set[str] = set()
        self.rewound: list[tuple[str, str | None]] = []
        self.cursor: str | None = None

    def apply(self, told: Told) -> None:
        self.cursor = told.id or self.cursor
        match told.event:
            case "family":
                self.members = {info["id"] for info in told.data["conversations"]}
            case "conversation":
                assert told.data["info"]["id"] == told.data["conversation"]
                self.members.add(told.data["conversation"])
            case "deleted":
                self.members.discard(told.data["conversation"])
            case "rewound":
                self.rewound.append((told.data["conversation"], told.data["at"]))
            case "event":
                assert told.data["id"] not in self.ids, f"{told.data['id']} came twice"
                assert told.data["conversation"] in self.members, "its conversation was not told of"
                self.ids.append(told.data["id"])
                self.own.setdefault(told.data["conversation"], []).append(told.data["id"])
                if "path" in told.data:
                    self.paths[told.data["conversation"]] = told.data["path"]
            case _:
                assert told.id is None

    def read(self, reader: Reader, wanted: set[str]) -> "Family":
        """Reads until it has all events that are wanted, and nothing else is there to be heard."""
        while not wanted <= set(self.ids):
            told = reader.next()
            assert told is not None, f"the stream ended without {wanted - set(self.ids)}"
            self.apply(told)
        return self


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


# What comes, and whose it is.


def test_what_branches_share_comes_once_and_each_event_says_whose_it_is(server: Served, api: Api) -> None:
    root = api.create()
    first = api.run(root, "one").json()["id"]
    fork = api.post(f"{root}/fork", at=first).json()["id"]
    api.run(root, "two")
    api.run(fork, "other")
    child = spawn(server, root, "scout")
    api.run(child, "look")
    grandchild = spawn(server, child, "digger", path="/root/scout")
    api.run(grandchild, "dig")
    there = committed(api, root, fork, child, grandchild)
    shared = set(there[root]) & set(there[fork])
    with follow(server, fork) as reader:  # whichever member is named: the family is the same
        family = Family().read(reader, {id for ids in there.values() for id in ids})
        assert [told for told in silent(reader) if told.event != "snapshot"] == []
    assert family.own == {
        root: there[root],
        fork: [id for id in there[fork] if id not in shared],
        child: there[child],
        grandchild: there[grandchild],
    }
    assert family.paths == {child: "/root/scout", grandchild: "/root/scout/digger"}
    assert family.members == {root, fork, child, grandchild}


def test_members_that_come_while_it_is_followed_are_told_of_with_all_they_commit(server: Served, api: Api) -> None:
    root = api.create()
    last = api.run(root, "one").json()["id"]
    with follow(server, root) as reader:
        family = Family().read(reader, set(committed(api, root)[root]))
        assert family.members == {root}
        fork = api.post(f"{root}/fork").json()["id"]
        api.run(fork, "in the fork")
        child = spawn(server, root, "late")
        api.run(child, "hello")
        aside = api.post(f"{root}/rewind", before=last).json()["aside"]["id"]
        api.run(root, "again")
        there = committed(api, root, fork, child, aside)
        family.read(reader, {id for ids in there.values() for id in ids})
        for told in silent(reader):
            family.apply(told)
    assert family.members == {root, fork, child, aside}
    assert family.rewound == [(root, None)]
    assert family.own[child] == there[child]
    assert family.own[root] == there[aside] + there[root], "what it had before it was rewound, and after"
    assert aside not in family.own, "nothing of what is kept there is new"


def test_a_turn_that_runs_is_told_with_whose_it_is(server: Served, api: Api) -> None:
    root = api.create()
    child = spawn(server, root, "teller")
    with follow(server, root) as reader:
        reader.until("family")
        api.run(child, "words")
        told = reader.until("turn")
    assert {one.data["conversation"] for one in told} == {child}
    assert {one.data["path"] for one in told} == {"/root/teller"}
    pieces = "".join(one.data["text"] for one in told if one.event == "text")
    assert "You said: words".startswith(pieces), "pieces that come after the event that has them all are no news"
    assert [one.event for one in told if one.event in ("turn_started", "event", "turn")][-1] == "turn"
    assert told[-1].data["outcome"] == "committed"


def test_one_who_comes_late_hears_how_the_turns_of_all_members_stand(server: Served, api: Api, gate: Gate) -> None:
    root = api.create()
    child = spawn(server, root, "holder")
    running = [api.soon(api.run, id, holds("x")) for id in (root, child)]
    gate.reached(2)
    with follow(server, root) as reader:
        told = reader.until("snapshot") + reader.until("snapshot")
        standing = {one.data["conversation"]: one.data for one in told if one.event == "snapshot"}
        assert set(standing) == {root, child}
        assert (standing[child]["path"], "path" in standing[root]) == ("/root/holder", False)
        gate.open()
        ended = {one.data["conversation"] for one in reader.until("turn") + reader.until("turn") if one.event == "turn"}
        assert ended == {root, child}
    for one in running:
        assert one.result(PATIENCE).json()["outcome"] == "committed"


def spawns(heard: Heard) -> Reply:
    """A model that gives a task to a sub-agent, waits for it, and says what it heard."""
    done = sum(message["role"] == "tool" for message in heard.body["messages"])
    if heard.text != "Ask somebody":
        return Reply("I looked", piece=4)
    if done < 2:
        call = ("spawn_agent", '{"task": "Look"}') if done == 0 else ("wait_agent", "{}")
        return Reply(calls=(ScriptedCall(*call, f"c{done}"),))
    return Reply("So it was")


def test_a_turn_that_spawns_tells_what_the_sub_agent_does_meanwhile() -> None:
    agents = Catalog({"helper": Agent(model(spawns, "spawning-family"), sub_agents=True)})
    with served(agents=agents, settings=FAST) as server, using(server.url) as api:
        root = api.create()
        before = _counted(api)
        with follow(server, root) as reader:
            assert api.run(root, "Ask somebody").json()["text"] == "So it was"
            family = Family()
            told: list[Told] = []
            while not told or (told[-1].event, told[-1].data["conversation"]) != ("turn", root):
                told += reader.until(lambda _: True)
                family.apply(told[-1])
            (child,) = family.members - {root}
        assert family.own == committed(api, root, child)
        ends = [(one.event, one.data["conversation"]) for one in told if one.event in ("conversation", "turn")]
        assert ends == [("conversation", child), ("turn", child), ("turn", root)]
        assert {one.data["path"] for one in told if one.data["conversation"] == child} == {api.get(child)["path"]}
        assert _counted(api) == before + 2
        left_nothing(server)


def test_a_turn_that_a_sub_agent_runs_inside_of_its_parents_is_told_and_counted(server: Served, api: Api) -> None:
    root = api.create()
    child = spawn(server, root, "inner")
    turn = new_id()

    async def run() -> None:
        tell = server.services.turns.beside("default", child)
        tell(TurnStarted(turn, child, ()))
        tell(TextPiece("Hm"))
        tell(TextPiece("m."))

    async def end() -> None:
        ended = server.services.turns.beside("default", child)
        ended(TurnStarted(turn, child, ()))
        ended(Turn(turn, child, "committed", (), (), Usage()))

    with follow(server, root) as reader:
        reader.until("family")
        silent(reader)  # what begins before that may come as a snapshot
        before = _counted(api)
        inside(server, run())
        told = reader.until(lambda one: one.event == "text" and one.data["text"] == "m.")
        assert {(one.data["conversation"], one.data["path"]) for one in told} == {(child, "/root/inner")}
        with follow(server, child) as late:
            assert late.until("snapshot")[-1].data["updates"][-1]["text"] == "Hmm."
        inside(server, end())
        assert reader.until("turn")[-1].data["id"] == turn
        assert _counted(api) == before + 1
    left_nothing(server)


def test_a_sub_agent_is_heard_of_as_soon_as_its_first_turn_begins(gate: Gate) -> None:
    rarely = ServerSettings(poll=3600, heartbeat=0.05)  # nobody looks what other processes commit
    with served(agents=agents_of(name="begins"), settings=rarely) as server, using(server.url) as api:
        root = api.create()
        with follow(server, root) as reader:
            silent(reader)
            child = spawn(server, root, "quick")

            async def run() -> None:
                server.services.turns.beside("default", child)(TurnStarted(new_id(), child, ()))

            inside(server, run())
            told = reader.until("snapshot")
        assert [(one.event, one.data["conversation"]) for one in told] == [("conversation", child), ("snapshot", child)]


def test_a_turn_beneath_that_tells_no_end_ends_with_its_parents(server: Served, api: Api) -> None:
    root = api.create()
    child = spawn(server, root, "lost")

    async def run() -> None:
        async def act(tell: Any) -> Turn:
            tell(TurnStarted("turn", root, ()))
            server.services.turns.beside("default", child)(TurnStarted(new_id(), child, ()))
            assert server.services.turns.feed("default", child) is not None
            return Turn("turn", root, "committed", (), (), Usage())

        feed, _ = await server.services.turns.start("default", act)
        await feed.ended.wait()
        assert server.services.turns.feed("default", child) is None

    inside(server, run())
    left_nothing(server)


def _counted(api: Api) -> float:
    """How many turns the server has counted as committed."""
    lines = api.http.get("/metrics").text.splitlines()
    return float(
        next(line for line in lines if line.startswith('forkpoint_turns_total{outcome="committed"')).split()[-1]
    )


def test_without_provisional_frames_only_what_is_committed_comes(server: Served, api: Api) -> None:
    root = api.create()
    with follow(server, root, provisional="false") as reader:
        api.run(root, "one")
        assert {told.event for told in reader.until("turn")} == {"family", "event", "turn"}


def test_the_team_alone_can_be_followed(server: Served, api: Api) -> None:
    root = api.create()
    api.run(root, "one")
    fork = api.post(f"{root}/fork").json()["id"]
    api.run(fork, "not of the team")
    child = spawn(server, root, "mate")
    api.run(child, "hello")
    below = spawn(server, child, "deep", path="/root/mate")
    api.run(below, "deeper")
    theirs = spawn(server, fork, "stranger")
    there = committed(api, root, child, below)
    with follow(server, root, agents="true") as reader:
        family = Family().read(reader, {id for ids in there.values() for id in ids})
        api.run(fork, "more")
        api.run(theirs, "more")
        api.run(below, "and deeper")
        there = committed(api, root, child, below)
        family.read(reader, {id for ids in there.values() for id in ids})
        for told in silent(reader):
            family.apply(told)
    assert (family.own, family.members) == (there, {root, child, below})


# Going on where one was.


def test_reconnecting_after_any_event_gives_neither_gap_nor_duplicate(server: Served, api: Api) -> None:
    root = api.create()
    first = api.run(root, "one").json()["id"]
    second = api.run(root, "two").json()["id"]
    fork = api.post(f"{root}/fork", at=first).json()["id"]
    api.run(fork, "other")
    child = spawn(server, root, "again")
    api.run(child, "look")
    api.post(f"{root}/rewind", before=second)
    api.run(root, "three")
    with follow(server, root) as reader:
        told = [one for one in silent(reader) if one.id is not None]
    everything = [one.data["id"] for one in told if one.event == "event"]
    assert len(everything) == len(set(everything)) > 10
    for number, one in enumerate(told):
        left = [later.data["id"] for later in told[number + 1 :] if later.event == "event"]
        with follow(server, root, last=one.id) as again:
            came = [again.next() or one for _ in range(1 + len(left))] if left else silent(again)
        assert [later.data["id"] for later in came if later.event == "event"] == left, one
        assert came[0].event == "family"
        assert [later for later in came if later.event == "rewound"] == []


def test_from_the_head_on_only_what_is_new_comes_also_after_a_break(server: Served, api: Api) -> None:
    root = api.create()
    api.run(root, "one")
    child = spawn(server, root, "head")
    api.run(child, "look")
    with follow(server, root, after="head") as reader:
        start = reader.until("family")[-1]
        assert silent(reader) == []
    had = committed(api, child)[child]
    api.run(child, "more")
    new = committed(api, child)[child]
    with follow(server, root, last=start.id) as reader:
        family = Family().read(reader, {new[-1]})
    assert had + family.ids == new


@pytest.mark.parametrize("kept", [True, False])
def test_a_rewind_while_one_was_away_is_told(server: Served, api: Api, kept: bool) -> None:
    root = api.create()
    api.run(root, "one")
    had = committed(api, root)[root]
    second = api.run(root, "two").json()["id"]
    with follow(server, root) as reader:
        family = Family().read(reader, set(committed(api, root)[root]))
    aside = api.post(f"{root}/rewind", before=second).json()["aside"]["id"]
    if not kept:
        assert api.http.delete(f"/api/conversations/{aside}").status_code == 204
    api.run(root, "three")
    now = committed(api, root)[root]
    with follow(server, root, last=family.cursor) as reader:
        family.read(reader, set(now))
    assert family.rewound == [(root, had[-1])]
    with follow(server, root, last=family.cursor) as reader:
        assert {told.event for told in silent(reader)} == {"family"}


@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_family_does_a_reader_that_breaks_off_has_all_of_it_once(
    server: Served, api: Api, seed: int
) -> None:
    chance = random.Random(seed)
    root = api.create()
    api.run(root, "first")
    members, everything, family = [root], set(committed(api, root)[root]), Family()
    for step in range(10):
        reader = follow(server, root, **({} if family.cursor is None else {"last": family.cursor}))
        for _ in range(2):
            one = chance.choice(members)
            match chance.choice(["run", "run", "fork", "spawn", "rewind", "keep", "delete"]):
                case "run":
                    api.run(one, f"step {step}")
                case "fork":
                    members.append(api.post(f"{one}/fork").json()["id"])
                case "spawn":
                    members.append(spawn(server, one, f"s{len(members)}-{step}"))
                case "rewind" if ids := committed(api, one)[one]:
                    turn = chance.choice(api.get(f"{one}/turns")["items"])["id"]
                    if aside := api.post(f"{one}/rewind", at=turn).json()["aside"]:
                        members.append(aside["id"])
                    assert set(ids) <= everything | set(committed(api, *members)[members[-1]])
                case "keep":
                    kept = api.post(f"{one}/keep", branch=chance.choice(members))
                    assert kept.status_code in {200, 422}, kept.text  # not itself, and no sub-agent
                    if kept.status_code == 200 and (aside := kept.json()["aside"]):
                        members.append(aside["id"])
                case "delete" if one != root and step % 3 == 0:
                    family.read(reader, everything)  # or what only it had is never told
                    api.http.delete(f"/api/conversations/{one}")
                    members = [info["id"] for info in api.get(f"{root}/tree")["items"]]
            everything |= {id for ids in committed(api, *members).values() for id in ids}
        if chance.random() < 0.5:
            family.read(reader, everything)
        elif not everything <= set(family.ids):
            for told in reader.until("event"):  # and what comes then it never reads
                family.apply(told)
        reader.close()
    with follow(server, root, **({} if family.cursor is None else {"last": family.cursor})) as reader:
        family.read(reader, everything)
        for told in silent(reader):
            family.apply(told)
    assert (set(family.ids), family.members) == (everything, set(members))


@pytest.mark.parametrize("cursor", ["x", "1-4", "AAAAAAAA1-1.", "AAAAAAAA1-x", "AAAAAAAA99999999999-1"])
def test_a_cursor_that_is_none_is_refused(server: Served, api: Api, cursor: str) -> None:
    root = api.create()
    with follow(server, root, last=cursor) as reader:
        assert reader.status == 422, cursor


def test_a_cursor_is_short() -> None:
    entries = [f"abcd_-{n:02}{n + 7}-{n * 30}" for n in range(33)]
    cursor = ".".join(entries)
    since = read_cursor("after", cursor)
    assert since is not None
    assert (len(since), since[-1], len(cursor) < 600) == (33, ("abcd_-32", Position(39, 960)), True)


# How it ends, and who may read it.


def test_a_member_that_is_deleted_is_told_of_and_the_stream_goes_on(server: Served, api: Api) -> None:
    root = api.create()
    api.run(root, "one")
    fork = api.post(f"{root}/fork").json()["id"]
    with follow(server, root) as reader:
        silent(reader)
        api.http.delete(f"/api/conversations/{fork}")
        assert [(told.event, told.data) for told in reader.until("deleted")] == [("deleted", {"conversation": fork})]
        api.run(root, "two")
        assert reader.until("turn")[-1].data["conversation"] == root
        api.http.delete(f"/api/conversations/{root}")
        assert (reader.rest()[-1].event, reader.next()) == ("deleted", None)
    with follow(server, root) as reader:
        assert reader.status == 404


def test_a_slow_reader_is_told_of_the_gap_and_misses_nothing_committed(gate: Gate) -> None:
    small = ServerSettings(poll=0.02, heartbeat=0.05, buffer=4)
    with served(agents=agents_of(name="slow-family"), settings=small) as server, using(server.url) as api:
        root = api.create()
        child = spawn(server, root, "slow")
        with follow(server, root) as reader:
            reader.until("family")
            silent(reader)

            async def flood() -> None:  # in one go, so that nobody reads meanwhile
                turn = new_id()
                tell = server.services.turns.beside("default", child)
                tell(TurnStarted(turn, child, ()))
                for _ in range(9):
                    tell(TextPiece("word "))

            inside(server, flood())
            gap, snapshot = (reader.until(kind)[-1] for kind in ("gap", "snapshot"))
            assert gap.data["dropped"] > 0
            assert (snapshot.data["conversation"], snapshot.data["updates"][-1]["text"]) == (child, "word " * 9)
            api.run(root, "still there")
            family = Family()
            family.members = {root, child}
            family.read(reader, set(committed(api, root)[root]))


def test_a_tenant_follows_nobody_elses_family_and_a_family_is_one_stream(gate: Gate) -> None:
    few = ServerSettings(poll=0.02, heartbeat=0.05, max_streams=4, max_streams_per_tenant=1)
    with (
        served(agents=agents_of(name="two-families"), keyring=two_tenants(), settings=few) as server,
        using(server.url, "key-of-one") as one,
        using(server.url, "key-of-two") as two,
    ):
        root, other = one.create(), two.create()
        spawn(server, root, "mine", tenant="one")
        one.run(root, "mine")
        with follow(server, root, key="key-of-two") as stranger:
            assert stranger.status == 404
        with follow(server, root, key="key-of-one") as reader, follow(server, other, key="key-of-two") as theirs:
            family = Family().read(reader, set(committed(one, root)[root]))
            assert len(family.members) == 2
            with follow(server, root, key="key-of-one") as second:
                assert second.status == 429
            two.run(other, "theirs")
            assert {told.data.get("conversation") for told in theirs.until("turn")} == {other}
            assert silent(reader) == []


def test_nothing_is_left_of_a_stream_that_has_ended(server: Served, api: Api) -> None:
    watching = server.services.watching
    root = api.create()
    members = [root, *(spawn(server, root, f"left{n}") for n in range(3))]
    with Visits() as visits:
        with follow(server, root) as reader:
            silent(reader)
            assert [len(watching.mailboxes("default", id)) for id in members] == [1, 1, 1, 1]
        visits.until("GET /api/conversations/{id}/family/stream 200")
    assert not any(watching.mailboxes("default", id) for id in members)


def test_it_ends_when_its_key_is_revoked(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    key, other = add_key(file, "one").token, add_key(file, "two").token
    with served(keyring=Keyring([Keys(file)]), settings=FAST) as server, using(server.url, other) as api:
        root = api.create()
        with follow(server, root, key=key) as reader:
            silent(reader)
            revoke_key(file, "one")
            assert reader.rest() == []


def test_a_call_of_a_tool_is_told_with_whose_it_is(server: Served, api: Api, gate: Gate) -> None:
    root = api.create()
    with follow(server, root) as reader:
        reader.until("family")
        silent(reader)  # what begins before that may come as a snapshot
        running = api.soon(api.run, root, holds("y"))
        told = reader.until("call_started")
        gate.open()
        told += reader.until("turn")
    assert {"turn_started", "answered", "call_started", "event", "turn"} <= {one.event for one in told}
    assert {one.data["conversation"] for one in told} == {root}
    assert running.result(PATIENCE).json()["outcome"] == "committed"


def test_a_cursor_does_not_grow_with_members_that_come_and_go() -> None:
    with served(agents=agents_of(name="grow"), settings=FAST) as server, using(server.url) as api:
        root = api.create()
        turn = api.run(root, "one").json()["id"]
        family = Family()
        with closing(follow(server, root)) as reader:
            lengths = []
            for _ in range(4):
                fork = api.post(f"{root}/fork", at=turn).json()["id"]
                api.run(fork, "x")
                for told in silent(reader):
                    family.apply(told)
                api.http.delete(f"/api/conversations/{fork}")
                api.run(root, "on")
                for told in silent(reader):
                    family.apply(told)
                lengths.append(len(family.cursor or ""))
        assert lengths[-1] <= lengths[0] + 2, "ordinals may have a digit more"
