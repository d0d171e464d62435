"""``forkpoint tree``, ``fork`` and ``rewind``."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.program import Program, agent, one_line

from forkpoint import Conversation
from forkpoint.backend.settings import Settings, SubAgentOf
from forkpoint.cli.commands.branches.tree import draw, walk
from forkpoint.conversation.portal import wait_for
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.store.address import open_store
from forkpoint.store.values import Lineage, NewConversation, OpenTurn
from forkpoint.testing import Reply
from forkpoint.testing.samples import exchange


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


USED = Usage(calls=1, input=100, cached=90, output=10)


def root(forkpoint: Program, model: str, turns: int = 2) -> Conversation:
    said = [Reply(f"answer {number}", usage=USED) for number in range(turns + 8)]
    made = Conversation(agent(model, *said, instructions="You answer."), conversation_id="root", store=forkpoint.store)
    for number in range(turns):
        made.run(f"question {number}")
    return made


# tree


def test_a_family_is_drawn_with_what_each_branch_has(forkpoint: Program) -> None:
    with root(forkpoint, "drawn") as source:
        source.describe(title="The root")
        first, last = source.turns().items
        with source.fork(conversation_id="early", title="From the start", at=first) as early:
            early.run("another question")
            early.fork(conversation_id="deeper").close()
        aside = source.rewind(before=last)
        assert aside is not None
        aside.close()
    assert forkpoint.text("tree", "early").splitlines() == [
        "○ root  The root",
        "  4 events · 110 tokens, 90 % cached · idle",
        "├── ● early  From the start",
        "│     fork after 4 events · 3 own events · 110 tokens, 90 % cached · idle",
        "│   └── ○ deeper",
        "│         fork after 7 events · 0 own events · 0 tokens · idle",
        f"└── ○ {aside.id[:13]}",
        "      set aside after 4 events · 3 own events · 110 tokens, 90 % cached · idle",
    ]


def test_a_family_is_a_list_for_programs_each_after_what_it_branched_off(forkpoint: Program) -> None:
    with root(forkpoint, "listed") as source, source.fork(conversation_id="a") as a, a.fork(conversation_id="b"):
        source.fork(conversation_id="c").close()
        id = source.id
    document = forkpoint.json("tree", "a")
    assert [(one["name"], one["depth"]) for one in document["branches"]] == [("root", 0), ("a", 1), ("b", 2), ("c", 1)]
    assert document["branches"][0]["stats"]["spent"]["input"] == 200
    assert document["branches"][1]["lineage"] == {"kind": "fork", "source": id, "at": "1-7", "turn": None, "call": None}


def test_a_branch_whose_source_was_deleted_is_a_root_of_its_own(forkpoint: Program) -> None:
    with root(forkpoint, "orphans") as source:
        source.fork(conversation_id="one").close()
        source.fork(conversation_id="two").close()
        source.delete()
    lines = forkpoint.text("tree", "two").splitlines()
    assert lines[0::2] == ["○ one", "● two"]


def test_conversations_of_one_moment_are_told_apart(forkpoint: Program) -> None:
    moment = "0198c0de-1a2b-7"
    with root(forkpoint, "moment") as source:
        for end in ("001", "002"):
            source.fork(conversation_id=f"{moment}{end}-8000-000000000000").close()
    assert [line.split()[-1] for line in forkpoint.text("tree", "root").splitlines()[2::2]] == [
        f"{moment}001",
        f"{moment}002",
    ]


@pytest.mark.parametrize("width", [20, 60])
def test_a_long_chain_of_forks_is_drawn_on_any_screen(forkpoint: Program, width: int) -> None:
    with root(forkpoint, f"chain{width}") as source:
        chain = [source]
        for number in range(40):
            chain.append(chain[-1].fork(conversation_id=f"fork-{number}"))
        branches = source.tree()
        for made in chain[1:]:
            made.close()
    screen = io.StringIO()
    Console(width=width, file=screen).print(draw(branches, here=source.id))
    assert "● root" in screen.getvalue()


def test_a_family_may_be_deeper_than_python_likes_to_recurse() -> None:
    with Conversation(agent("deep"), store="memory:") as source:
        source.run("hi")
        chain = [source]
        for _ in range(1100):
            chain.append(chain[-1].fork())
        branches = source.tree()
        for made in chain[1:]:
            made.close()
    assert [depth for _, depth in walk(branches)] == list(range(1101))


def spawned(forkpoint: Program, parent: Conversation, nickname: str, path: str, turn: str | None = None) -> str:
    """A sub-agent of a conversation, as its store has it."""
    family = parent.info().family

    async def made() -> str:
        of = SubAgentOf(parent.id, path, nickname, path.count("/") - 1, role="explorer")
        settings = Settings(sub_agent=of).to_json()
        lineage = Lineage("sub_agent", parent.id, None, turn, None if turn is None else "call-1")
        new = NewConversation(id=new_id(), settings=settings, lineage=lineage, family=family)
        async with await open_store(forkpoint.store) as store:
            return (await store.create(new)).id

    return wait_for("made", made)


def test_a_sub_agent_is_drawn_with_its_path_and_the_turn_that_spawned_it(forkpoint: Program) -> None:
    with root(forkpoint, "spawned") as source:
        turn = source.turns().items[0].id
        child = spawned(forkpoint, source, "scout", "/root/scout", turn)
        with Conversation.open(child, store=forkpoint.store, bind=False) as scout:
            below = spawned(forkpoint, scout, "digger", "/root/scout/digger")
            scout.fork(conversation_id="of-the-scout").close()
        source.fork(conversation_id="branch").close()
    assert forkpoint.text("tree", "root").splitlines()[2:] == [
        f"├── ◇ /root/scout {child[:13]}",
        f"│     sub-agent (explorer) of turn {turn[:13]} · 0 own events · 0 tokens · idle",
        f"│   ├── ◇ /root/scout/digger {below[:13]}",
        "│   │     sub-agent (explorer) · 0 own events · 0 tokens · idle",
        "│   └── ○ of-the-scout",
        "│         fork at the start · 0 own events · 0 tokens · idle",
        "└── ○ branch",
        "      fork after 7 events · 0 own events · 0 tokens · idle",
        "○ conversation   ◇ sub-agent   ● ◆ the one you asked for",
    ]
    assert f"◆ /root/scout {child[:13]}" in forkpoint.text("tree", child)
    assert [line.split()[-1] for line in forkpoint.text("tree", "root", "--no-agents").splitlines()[0::2]] == [
        "root",
        "branch",
    ]


def test_for_programs_a_sub_agent_says_whose_it_is(forkpoint: Program) -> None:
    with root(forkpoint, "whose") as source:
        turn = source.turns().items[0].id
        child = spawned(forkpoint, source, "scout", "/root/scout", turn)
        tree = source.tree()
    assert [one.is_sub_agent for one in (*tree, *tree[0].branches)] == [False, True]
    of = {"parent": source.id, "path": "/root/scout", "nickname": "scout", "role": "explorer", "depth": 1}
    assert forkpoint.json("tree", "root")["branches"][1].items() >= of.items()
    assert forkpoint.json("tree", "root", "--no-agents")["branches"][1:] == []
    shown = forkpoint.json("show", child)["conversation"]
    assert shown.items() >= of.items()
    assert shown["lineage"] | {"at": None} == {
        "kind": "sub_agent",
        "source": source.id,
        "at": None,
        "turn": turn,
        "call": "call-1",
    }
    assert f"sub-agent /root/scout (explorer) of root, turn {turn[:13]}" in forkpoint.text("show", child)


def test_sub_agents_are_listed_only_if_one_asks_for_them_and_opened_by_the_start_of_their_ids(
    forkpoint: Program,
) -> None:
    with root(forkpoint, "unlisted") as source:
        child = spawned(forkpoint, source, "scout", "/root/scout")
    assert [info["id"] for info in forkpoint.json("list")["items"]] == [source.id]
    assert [info["id"] for info in forkpoint.json("list", "--agents")["items"]] == [child, source.id]
    assert "/root/scout" in forkpoint.text("list", "--agents")
    assert forkpoint.json("show", child[:18])["conversation"]["id"] == child


def test_sides_are_listed_only_if_one_asks_for_them_and_drawn_with_all_their_events(forkpoint: Program) -> None:
    with root(forkpoint, "beside") as source:
        side = asked_beside(forkpoint, source)
    assert [info["id"] for info in forkpoint.json("list")["items"]] == [source.id]
    assert [info["id"] for info in forkpoint.json("list", "--sides")["items"]] == [side, source.id]
    assert "side" in forkpoint.text("list", "--sides").splitlines()[1]
    assert forkpoint.json("show", side[:18])["conversation"]["lineage"]["kind"] == "side"
    drawn = one_line(forkpoint.text("tree", "root"))
    assert "side after 7 events · 2 own events" in drawn
    assert "side of root after 7 events" in forkpoint.text("show", side)


def asked_beside(forkpoint: Program, source: Conversation) -> str:
    """A side of a conversation, as a server makes it."""
    id = new_id()

    async def make() -> None:
        async with await open_store(forkpoint.store) as store:
            stood = await store.read(source.id)
            lineage = Lineage("side", stood.id, stood.head.position)
            new = NewConversation(id=id, family=stood.family, lineage=lineage)
            turn = await store.begin(id, new_id(), create=new)
            assert isinstance(turn, OpenTurn)
            await store.commit(turn, exchange("a title"))

    wait_for("made", make)
    return id


# fork


def test_fork_prints_the_id_and_the_name(forkpoint: Program) -> None:
    root(forkpoint, "printed").close()
    id, name = forkpoint.text("fork", "root", "--name", "mine").split()
    with Conversation.open("mine", store=forkpoint.store, bind=False) as fork:
        assert (fork.id, fork.name) == (id, name)
    nameless = forkpoint.text("fork", "root").strip()
    with Conversation.open(nameless, store=forkpoint.store, bind=False) as fork:
        assert fork.id == nameless


def test_fork_takes_all_its_options(forkpoint: Program) -> None:
    with root(forkpoint, "options") as source:
        first, last = (turn.id for turn in source.turns().items)
    (forkpoint.folder / "elsewhere").mkdir()
    made = forkpoint.json(
        *("fork", "root", "--at", first, "--name", "mine", "--title", "Mine", "--tag", "kind=debug"),
        *("--inherit-cache", "--keep-metrics", "--workspace", "elsewhere"),
    )
    assert (made["name"], made["title"], made["tags"]) == ("mine", "Mine", {"kind": "debug", "title": "Mine"})
    assert (made["events"], made["lineage"]["at"]) == (4, "1-4")
    assert made["cache"]["inherited_from"] == source.id
    assert made["workspace"] == str(forkpoint.folder / "elsewhere")
    assert forkpoint.json("show", "mine")["stats"]["carries_metrics"] is True
    assert forkpoint.json("fork", "root", "--before", last)["events"] == 4
    assert forkpoint.json("fork", "root", "--at", "1-4")["events"] == 4


def test_fork_refuses_what_makes_no_sense(forkpoint: Program) -> None:
    root(forkpoint, "refused").close()
    both = forkpoint.run("fork", "root", "--at", "1-4", "--before", "1-7")
    assert (both.returncode, "it cannot be given together with --at" in both.stderr) == (2, True)
    inside = forkpoint.run("fork", "root", "--at", "9-9")
    assert (inside.returncode, inside.stderr.startswith("error: 9-9 is not a place to fork at")) == (1, True)
    taken = forkpoint.run("fork", "root", "--name", "root")
    assert (taken.returncode, "exists already" in taken.stderr) == (1, True)


def test_fork_with_another_model_or_other_instructions_keeps_the_rest_of_the_agent(forkpoint: Program) -> None:
    forkpoint.script(Reply("hi"))
    forkpoint.python("Conversation(builds.agent, conversation_id='root').run('hi')")
    made = forkpoint.json("fork", "root", "--name", "mine", "--model", "scripted/echo", "--inherit-cache")
    assert made["model"] == "scripted/echo"
    assert "dropped" in made["cache"]["dropped"]  # another model: nothing is in its cache
    forkpoint.text("fork", "root", "--name", "told", "--instructions", "You are told.")
    look = "a = Conversation.open({!r}).agent\nprint(a.llm.model, a.instructions, len(a.tools), a.approval)"
    assert forkpoint.python(look.format("mine")) == "scripted/echo  3 risky\n"
    assert forkpoint.python(look.format("told")) == "scripted/script.json You are told. 3 risky\n"
    both = forkpoint.run("fork", "root", "--agent", "builds:agent", "--model", "scripted/echo")
    assert (both.returncode, "--agent says who answers already" in both.stderr) == (1, True)


def test_fork_with_an_agent_of_ones_own(forkpoint: Program) -> None:
    root(forkpoint, "own_agent").close()
    forkpoint.script(Reply("hi"))
    assert forkpoint.json("fork", "root", "--agent", "builds:agent")["model"] == "scripted/script.json"
    for path, why in (
        ("builds", "is not of the form MODULE:NAME"),
        ("builds:nobody", "cannot be imported (AttributeError"),
        ("nowhere:agent", "cannot be imported (ModuleNotFoundError"),
        ("builds:restart", "and not an Agent"),
    ):
        done = forkpoint.run("fork", "root", "--agent", path)
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr


def test_a_file_in_the_folder_does_not_take_the_place_of_a_library(forkpoint: Program) -> None:
    forkpoint.script(Reply("hi"))
    (forkpoint.folder / "tomllib.py").write_text("raise SystemExit('not the one that was meant')")
    code = "from forkpoint.cli.common import imported_agent; imported_agent('builds:agent'); import tomllib"
    alone = [sys.executable, "-P", "-c", code]  # as the installed program is started: its folder is not looked at
    subprocess.run(alone, cwd=forkpoint.folder, env=forkpoint.environment, check=True)


def test_fork_says_where_it_works_and_delete_what_became_of_that(forkpoint: Program) -> None:
    (folder := forkpoint.folder / "builds").mkdir()
    (folder / "build.toml").write_text("retries = 1")
    with Conversation(agent(""), conversation_id="root", store=forkpoint.store, workspace=folder) as conversation:
        conversation.run("hi")
    shared = forkpoint.run("fork", "root", "--name", "shared")
    assert shared.stderr == f"It works in {folder}, shared with what it branched off.\n"
    made = forkpoint.folder / "data" / "forkpoint" / "workspaces" / "apart"
    apart = forkpoint.run("fork", "root", "--name", "apart", "--workspace", "copy")
    assert (apart.returncode, apart.stdout.split()[1]) == (0, "apart")
    assert apart.stderr == f"It works in {made}, a copy of {folder}.\n"
    assert one_line(f"workspace {made}, a copy of {folder}") in one_line(forkpoint.text("show", "apart"))
    assert one_line(f"workspace {folder}, shared with") in one_line(forkpoint.text("show", "shared"))
    below = forkpoint.json("fork", "apart", "--name", "below")
    assert below["isolation"] == {"kind": "share", "source": str(folder), "branch": None, "notes": []}
    refused = forkpoint.run("fork", "root", "--workspace", "worktree")
    assert (refused.returncode, "it is in no git repository; use a copy" in one_line(refused.stderr)) == (1, True)

    stays = forkpoint.text("delete", "apart", "--yes").splitlines()
    assert stays[-1] == f"Its folder {made} stays: below works there too."
    gone = forkpoint.json("delete", "below", "--yes")
    assert gone["workspace"] == {"path": str(made), "removed": True, "why": None}
    assert not made.exists()


# rewind


def test_rewind_says_under_which_id_what_stood_after_it_is_kept(forkpoint: Program) -> None:
    root(forkpoint, "kept", turns=3).close()
    now, kept = forkpoint.text("rewind", "root", "--turns", "2").splitlines()
    assert now == "root has 4 events now."
    assert kept.startswith("What stood after that (6 events) is kept as ")
    with Conversation.open(kept.split()[-1], store=forkpoint.store, bind=False) as aside:
        assert aside.info().events == 10


def test_rewind_goes_to_a_turn_or_an_event(forkpoint: Program) -> None:
    with root(forkpoint, "places", turns=3) as made:
        turns = [turn.id for turn in made.turns().items]
    assert forkpoint.json("rewind", "root", "--at", turns[1])["conversation"]["events"] == 7
    assert forkpoint.json("rewind", "root", "--before", turns[1])["conversation"]["events"] == 4
    document = forkpoint.json("rewind", "root", "--at", "1-4")
    assert (document["conversation"]["events"], document["aside"]) == (4, None)
    assert "Nothing stands after that point" in forkpoint.text("rewind", "root", "--at", "1-4")


def test_rewind_refuses_what_makes_no_sense(forkpoint: Program) -> None:
    root(forkpoint, "nowhere").close()
    assert forkpoint.run("rewind", "root").returncode == 2
    assert forkpoint.run("rewind", "root", "--turns", "0").returncode == 2
    assert forkpoint.run("rewind", "root", "--turns", "1", "--at", "1-4").returncode == 2
    far = forkpoint.run("rewind", "root", "--turns", "3")
    assert far.returncode == 1
    assert "has no turn to go back to: it has 2 committed turns" in one_line(far.stderr)
