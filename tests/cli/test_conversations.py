"""``forkpoint list``, ``show``, ``describe`` and ``delete``, and how a conversation is named."""

import json
import os
import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.program import Program, agent, one_line

from forkpoint import Conversation, TurnFailed
from forkpoint.agent import tool
from forkpoint.errors import NotFound
from forkpoint.events import Usage
from forkpoint.ids import new_id
from forkpoint.testing import Fault, Reply, ScriptedCall


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


@tool
def read_log(build: int) -> str:
    """Reads the log of a build."""
    return f"log of {build}: disk full"


USED = Usage(calls=1, input=1000, cached=750, output=20, nanodollars=12_300_000)


def build(forkpoint: Program, model: str) -> str:
    """A conversation with a call of a tool, a turn that failed and one that was tried again. Gives its id."""
    said = [
        Reply(calls=(ScriptedCall("read_log", '{"build": 1234}'),), usage=USED),
        Reply("The disk was full.", usage=USED),
        Reply("no", fault=Fault("overloaded"), usage=USED),
        Reply("Free some space.", usage=USED),
    ]
    speaker = agent(model, *said, tools=[read_log], instructions="You explain.", name="explainer")
    with Conversation(
        speaker,
        conversation_id="build-1234",
        store=forkpoint.store,
        title="Why did it fail?",
        tags={"kind": "ci"},
        workspace=forkpoint.folder,
    ) as made:
        made.run("Why did build 1234 fail?")
        with pytest.raises(TurnFailed):
            made.run("What fixes it?")
        made.retry()
        return made.id


def soon(text: str) -> str:
    """The text as it would be if the machine had nothing else to do."""
    return re.sub(r"\d+ (s|min) ago", "just now", text)


# list


def test_list_shows_each_conversation_on_a_line_the_newest_first(forkpoint: Program) -> None:
    build(forkpoint, "list")
    with Conversation(agent("list2"), store=forkpoint.store, title="Other", tags={"kind": "debug"}) as other:
        other.run("hi")
        other.fork().close()
    heading, fork, newer, older = forkpoint.text("list").splitlines()
    assert heading.split() == ["conversation", "title", "status", "events", "model", "updated", "kind"]
    assert fork.split()[-1] == "fork"
    assert newer.split()[:3] == [other.id[:13], "Other", "idle"]
    assert soon(one_line(older)) == "build-1234 Why did it fail? idle 10 scripted/list just now root"


def test_list_filters_by_tag_and_status(forkpoint: Program) -> None:
    for name, tags in (("one", {"kind": "ci", "team": "a"}), ("two", {"kind": "ci"}), ("three", {})):
        with Conversation(agent("tags"), conversation_id=name, store=forkpoint.store, tags=tags) as made:
            made.run("hi")

    def found(*arguments: str) -> list[str]:
        return [item["name"] for item in forkpoint.json("list", *arguments)["items"]]

    assert found("--tag", "kind=ci") == ["two", "one"]
    assert found("--tag", "kind=ci", "--tag", "team=a") == ["one"]
    assert found("--status", "idle") == ["three", "two", "one"]
    assert found("--status", "running") == []
    assert forkpoint.run("list", "--tag", "kind").returncode == 2
    assert forkpoint.run("list", "--status", "asleep").returncode == 2


def test_list_goes_on_where_a_page_ended(forkpoint: Program) -> None:
    for name in ("one", "two", "three"):
        with Conversation(agent("pages"), conversation_id=name, store=forkpoint.store) as made:
            made.run("hi")
    first = forkpoint.json("list", "--limit", "2")
    assert [item["name"] for item in first["items"]] == ["three", "two"]
    done = forkpoint.run("list", "--limit", "2")
    assert done.stderr == f"More: forkpoint list --cursor {first['next']}\n"
    rest = forkpoint.json("list", "--cursor", first["next"])
    assert ([item["name"] for item in rest["items"]], rest["next"]) == (["one"], None)
    refused = forkpoint.run("list", "--cursor", "nonsense")
    assert (refused.returncode, refused.stderr.startswith("error: 'nonsense' is not a cursor")) == (1, True)


def test_list_begins_with_what_was_used_last_unless_it_is_told_otherwise(forkpoint: Program, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        with Conversation(agent("order"), conversation_id=name, store=forkpoint.store) as made:
            made.run("hi")
    with closing(sqlite3.connect(tmp_path / "store.db")) as db, db:
        db.execute("UPDATE conversation SET used = used - 3600000000 WHERE name <> 'one'")  # an hour ago

    def found(*arguments: str) -> list[str]:
        return [item["name"] for item in forkpoint.json("list", *arguments)["items"]]

    assert found() == found("--order", "used") == ["one", "three", "two"]
    assert found("--order", "created") == ["three", "two", "one"]
    done = forkpoint.run("list", "--order", "created", "--limit", "2")
    more = done.stderr.removeprefix("More: forkpoint ").split()
    assert more[:3] == ["list", "--order", "created"]
    assert found(*more[1:]) == ["one"]
    refused = forkpoint.run("list", "--cursor", more[-1])
    assert (refused.returncode, "is not a cursor of this list" in refused.stderr) == (1, True)
    assert forkpoint.run("list", "--order", "size").returncode == 2


def test_list_shows_first_words_and_folds_what_was_set_aside(forkpoint: Program) -> None:
    with Conversation(agent("fold"), conversation_id="build", store=forkpoint.store) as build:
        first = build.run("Why did\nthe build fail?")
        build.run("And before?")
        for turn in (build.run("And after?"), first):
            aside = build.rewind(at=turn.id)
            if aside is not None:
                aside.close()
    heading, row = forkpoint.text("list").splitlines()
    assert heading.split() == ["conversation", "title", "folded", "status", "events", "model", "updated", "kind"]
    assert one_line(row).startswith("build Why did the build fail? 1 aside idle")
    everything = forkpoint.json("list", "--all")["items"]
    assert [(item["lineage"]["kind"], item["glance"]["opening"]) for item in everything] == [
        ("aside", "And before?"),
        ("root", "Why did the build fail?"),
    ]
    forkpoint.text("delete", "build", "--yes")
    assert forkpoint.run("list").stderr == "No conversations but what is left out here: forkpoint list --all\n"


def test_a_first_try_that_failed_is_listed_and_found_by_the_start_of_its_id(forkpoint: Program) -> None:
    forkpoint.script(Reply(fault=Fault("overloaded")))
    failed = forkpoint.run("run", "--agent", "builds:agent", "Is anybody there?")
    assert failed.returncode == 1
    (item,) = forkpoint.json("list")["items"]
    assert (item["draft"], item["glance"]["opening"]) == (True, "Is anybody there?")
    assert "Is anybody there?  not committed" in forkpoint.text("list")
    assert "Is anybody there?" in forkpoint.text("show", item["id"][:13], "--turns")


def test_more_of_a_list_is_asked_for_with_the_same_options(forkpoint: Program) -> None:
    for number in range(3):
        with Conversation(agent(f"more{number}"), store=forkpoint.store, tags={"kind": "a b"}) as one:
            one.run("Hello")
    asked = ["--order", "created", "--all", "--status", "idle", "--tag", "kind=a b", "--store", forkpoint.store]
    done = forkpoint.run("list", "--limit", "2", *asked)
    more = shlex.split(done.stderr.removeprefix("More: forkpoint "))
    assert more[:-1] == ["list", *asked, "--cursor"]
    assert len(forkpoint.json(*more)["items"]) == 1


def test_list_of_a_store_that_is_not_there_is_empty_and_makes_none(forkpoint: Program) -> None:
    done = forkpoint.run("list")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", 'No conversations. Begin one: forkpoint run "..."\n')
    assert forkpoint.json("list") == {"items": [], "next": None}
    assert os.listdir(forkpoint.folder) == []


# show


def facts(shown: str) -> dict[str, str]:
    """The lines of `show` that say what a conversation is."""
    rows = [line.partition("  ") for line in shown.split("\n\n")[0].splitlines()[1:]]
    return {name: value.strip() for name, _, value in rows}


def test_show_says_what_a_conversation_is_and_has_used(forkpoint: Program) -> None:
    id = build(forkpoint, "show")
    shown = forkpoint.text("show", "build-1234")
    assert shown.splitlines()[0] == "build-1234  Why did it fail?"
    said = facts(shown)
    assert said["id"] == id
    assert said["status"] == "idle"
    assert said["origin"] == "root"
    assert said["history"] == "10 events; the last is 1-10"
    assert (said["model"], said["agent"], said["tags"]) == ("scripted/show", "explainer", "kind=ci")
    assert said["workspace"] == str(forkpoint.folder)
    assert said["spent"] == "4,000 tokens in (75 % cached), 80 out, 4 calls, $0.0492"
    assert said["cache key"].endswith(", its own")
    assert len(said["digest"]) == 64
    assert "family" not in said  # it is alone


def test_show_says_where_a_fork_comes_from_and_whose_key_it_has(forkpoint: Program) -> None:
    build(forkpoint, "show_fork")
    with Conversation.open("build-1234", store=forkpoint.store, bind=False) as source:
        turn = source.turns().items[0]
        source.fork(conversation_id="fork", at=turn, cache="inherit").close()
        key = source.cache().key
    said = facts(forkpoint.text("show", "fork"))
    assert said["origin"] == "fork of build-1234 after 7 events"
    assert said["history"] == "7 events, 0 of its own; the last is 1-7"
    assert said["spent"] == "nothing"
    assert said["inherited"] == "2,000 tokens in (75 % cached), 40 out, 2 calls, $0.0246; not counted as its own"
    assert said["family"] == "4,000 tokens in (75 % cached), 80 out, 4 calls, $0.0492"
    assert said["cache key"] == f"{key}, inherited from build-1234"
    forkpoint.text("delete", "build-1234", "--yes")
    assert "(deleted) after 7 events" in facts(forkpoint.text("show", "fork"))["origin"]


def test_show_says_that_a_price_is_not_known(forkpoint: Program) -> None:
    free = Reply("hi", usage=Usage(calls=1, input=10, output=1, unpriced=1))
    with Conversation(agent("unpriced", free), conversation_id="dear", store=forkpoint.store) as made:
        made.run("hi")
    assert facts(forkpoint.text("show", "dear"))["spent"].endswith("price unknown")


def test_show_turns_has_those_that_failed_and_what_tools_did(forkpoint: Program) -> None:
    build(forkpoint, "show_turns")
    first, failed, again = forkpoint.text("show", "build-1234", "--turns").split("\n\n")[1:]
    assert soon(first).startswith("committed · just now · 2,000 tokens in, 75 % cached · 40 out · $0.0246 · ")
    assert re.search(r"call       done, .*: read_log\(build=1234\)", first)
    assert "assistant  The disk was full." in first
    assert soon(failed).startswith("failed · just now · 1,000 tokens in")
    assert "error  The provider of scripted/show_turns could not answer now" in failed
    assert "assistant  Free some space." in again
    assert f"retry of   {failed.splitlines()[1].split()[-1]}" in again


def test_show_limits_turns_and_events_to_the_newest(forkpoint: Program) -> None:
    build(forkpoint, "show_limit")
    document = forkpoint.json("show", "build-1234", "--turns", "--events", "--limit", "1")
    assert [turn["text"] for turn in document["turns"]] == ["Free some space."]
    assert [event["id"] for event in document["events"]] == ["1-10"]


def test_show_records_says_what_was_kept_and_by_whom(forkpoint: Program) -> None:
    build(forkpoint, "show_records")
    records = forkpoint.json("show", "build-1234", "--records")["records"]
    assert records[0]["kind"] == "born"
    assert {"committed", "failed"} <= {record["kind"] for record in records}
    assert [record["number"] for record in records] == list(range(len(records)))
    newest = forkpoint.json("show", "build-1234", "--records", "--limit", "1")["records"]
    assert newest == records[-1:]
    shown = forkpoint.text("show", "build-1234", "--records").splitlines()[-1]
    assert newest[0]["kind"] in shown
    assert newest[0]["digest"][:12] in shown


def test_show_refuses_options_that_would_have_no_effect(forkpoint: Program) -> None:
    assert "it limits --turns, --events and --records" in forkpoint.run("show", "x", "--limit", "1").stderr
    for option in ("--turns", "--events", "--records"):
        assert forkpoint.run("show", "x", "--turn", new_id(), option).returncode == 2


def test_show_events_is_a_transcript(forkpoint: Program) -> None:
    build(forkpoint, "show_events")
    lines = forkpoint.text("show", "build-1234", "--events").split("\n\n")[1].splitlines()
    assert [" ".join(line.split()[:2]) for line in lines if line.startswith("1-")] == [
        "1-1 manifest",
        "1-2 user",
        "1-3 model",
        "1-4 call",
        "1-5 tool",
        "1-6 model",
        "1-7 assistant",
        "1-8 user",
        "1-9 model",
        "1-10 assistant",
    ]
    assert '1-4   call       read_log({"build": 1234})' in "\n".join(lines)
    assert "                 log of 1234: disk full" in lines


def test_show_turn_has_everything_that_is_in_it(forkpoint: Program) -> None:
    build(forkpoint, "show_turn")
    failed = forkpoint.json("show", "build-1234", "--turns")["turns"][1]["id"]
    shown = forkpoint.text("show", "build-1234", "--turn", failed)
    assert shown.startswith("failed · ")
    assert "error         model_overloaded: The provider of" in shown
    assert "+1  user   What fixes it?" in shown
    document = forkpoint.json("show", "build-1234", "--turn", failed)
    assert (document["outcome"], document["error"]["code"]) == ("failed", "model_overloaded")
    assert [event["kind"] for event in document["events"]] == ["user_message", "model_called"]
    assert forkpoint.run("show", "build-1234", "--turn", new_id()).returncode == 1


def test_show_works_where_the_tools_cannot_be_imported(forkpoint: Program) -> None:
    build(forkpoint, "show_bind")  # its tool is in this module, which no other process finds
    document = forkpoint.json("show", "build-1234", "--turns", "--events")
    assert document["conversation"]["name"] == "build-1234"
    assert document["stats"]["spent"]["dollars"] == 0.0492
    assert document["turns"][0]["calls"][0]["result"] == "log of 1234: disk full"
    assert document["events"][3]["body"]["tool"] == "read_log"


# Which conversation is meant.


def test_the_start_of_an_id_is_enough(forkpoint: Program) -> None:
    moment = 1_700_000_000_000_000
    ids = [new_id(moment), new_id(moment + 1_000), new_id(moment + 100 * 86_400_000_000)]
    for id in ids:
        with Conversation(agent("prefix"), conversation_id=id, store=forkpoint.store) as made:
            made.run("hi")
    assert forkpoint.json("show", ids[2][:6])["conversation"]["id"] == ids[2]
    assert forkpoint.json("show", ids[0][:13].upper())["conversation"]["id"] == ids[0]
    several = forkpoint.run("show", ids[0][:8])
    assert several.returncode == 1
    assert several.stderr.startswith(f"error: '{ids[0][:8]}' is the start of 2 ids, among them {ids[1]}, {ids[0]}.")
    assert json.loads(forkpoint.run("show", ids[0][:8], "--json").stderr)["error"]["code"] == "ambiguous"
    assert forkpoint.run("show", ids[2][:5]).stderr.startswith("error: There is no conversation")


def test_a_name_wins_over_the_start_of_an_id(forkpoint: Program) -> None:
    id = new_id()
    for name in (id, id[:8]):
        with Conversation(agent("name"), conversation_id=name, store=forkpoint.store) as made:
            made.run("hi")
    assert forkpoint.json("show", id[:8])["conversation"]["name"] == id[:8]


# describe


def test_describe_sets_title_and_tags_and_leaves_the_rest(forkpoint: Program) -> None:
    build(forkpoint, "describe")
    shown = forkpoint.text("describe", "build-1234", "--title", "Solved", "--tag", "owner=ann", "--tag", "b=c=d")
    assert "Solved" in shown
    document = forkpoint.json("describe", "build-1234", "--untag", "kind")
    assert document["tags"] == {"title": "Solved", "owner": "ann", "b": "c=d"}
    assert forkpoint.json("describe", "build-1234", "--title", "")["tags"] == {"owner": "ann", "b": "c=d"}
    assert forkpoint.run("describe", "build-1234").returncode == 2


# delete


def test_delete_asks_first_and_says_that_branches_stay(forkpoint: Program) -> None:
    build(forkpoint, "delete")
    with Conversation.open("build-1234", store=forkpoint.store, bind=False) as made:
        made.fork(conversation_id="fork").close()
    for answer in ("n\n", ""):
        done = forkpoint.run("delete", "build-1234", stdin=answer)
        assert done.returncode == 1
        assert "Delete build-1234 (Why did it fail?), 10 events? Its 1 branch will stay." in done.stderr
    assert forkpoint.run("delete", "build-1234", stdin="y\n").returncode == 0
    with pytest.raises(NotFound):
        Conversation.open("build-1234", store=forkpoint.store)
    assert len(forkpoint.json("show", "fork", "--events")["events"]) == 10


def test_delete_says_to_programs_what_stays(forkpoint: Program) -> None:
    id = build(forkpoint, "delete_json")
    with Conversation.open(id, store=forkpoint.store, bind=False) as made, made.fork() as fork:
        assert forkpoint.json("delete", id, "--yes") == {"deleted": id, "branches_left": [fork.id]}


# What was spent.


def test_usage_shows_what_was_spent_in_all_and_makes_no_store(forkpoint: Program) -> None:
    assert forkpoint.json("usage")["total"]["calls"] == 0
    assert not (forkpoint.folder / "store.db").exists()
    build(forkpoint, "usage")
    first, second = forkpoint.text("usage").splitlines()
    assert first.split(maxsplit=2)[2] == "4,000 tokens in (75 % cached), 80 out, 4 calls, $0.0492"
    assert second.split() == ["of", "it", "beside", "conversations", "nothing"]
    forkpoint.run("delete", "build-1234", "--yes")
    assert forkpoint.json("usage")["total"]["calls"] == 4, "what was deleted has cost what it cost"
