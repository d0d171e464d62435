"""What somebody types in a chat: files after @, commands after !, completion, and lists to pick from."""

import base64
import json
import os
import pty
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.program import Program
from tests.cli.terminal import CTRL_C, Terminal

from forkpoint import Conversation
from forkpoint.cli.chat.attachments import attached, named_files, own_words
from forkpoint.cli.chat.commands.slash_command import SlashCommand
from forkpoint.cli.chat.completion import completions
from forkpoint.cli.chat.shell import MOST, RanCommand, run_command
from forkpoint.cli.questions.choice import choose
from forkpoint.events import Image, Text, UserMessage
from forkpoint.testing import Fault, Reply

PNG = b"\x89PNG\r\n\x1a\nrest"
ECHO = ("--model", "scripted/echo")
PROMPT = "❯"
DOWN = "\x1b[B"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "b c.png").write_bytes(PNG)
    (tmp_path / "sub").mkdir()
    return tmp_path


# Files.


@pytest.mark.parametrize(
    ("message", "files"),
    [
        ("see @a.txt", ("a.txt",)),
        ("@a.txt, please; and @a.txt again", ("a.txt",)),
        ('look at @"b c.png"!', ("b c.png",)),
        ("(@a.txt)", ()),
        ("mail ann@a.txt", ()),
        ("@nobody and @sub stay text", ()),
        ("@ alone", ()),
    ],
)
def test_an_at_before_the_path_of_a_file_names_it(folder: Path, message: str, files: tuple[str, ...]) -> None:
    assert named_files(message) == files


def test_a_file_becomes_a_part_and_is_told_with_its_size(folder: Path) -> None:
    assert attached("a.txt") == (Text("[file a.txt]\nwords"), "attached a.txt (5 bytes)")
    assert attached("b c.png")[0] == Image("image/png", data=base64.b64encode(PNG).decode())


def test_what_was_attached_is_not_what_the_user_typed(folder: Path) -> None:
    ran = Text(RanCommand("ls", "a\n", 0).message)
    assert own_words([UserMessage((ran, Text("why?"), attached("a.txt")[0], attached("b c.png")[0]))]) == "why?"
    assert own_words([UserMessage((Image("image/png", data="AAAA"),))]) == "[image/png]"


# Commands.


def test_a_command_is_shown_line_by_line_and_told_with_its_status(tmp_path: Path) -> None:
    shown: list[str] = []
    ran = run_command("pwd; echo oops >&2; exit 3", tmp_path, shown.append)
    assert shown == [str(tmp_path.resolve()), "oops"]
    assert ran.status == 3
    assert ran.message.splitlines()[1:] == ["exit status 3, its output:]", *shown]


def test_an_output_that_is_too_long_keeps_its_beginning_and_its_end() -> None:
    told = RanCommand("x", "a" * MOST + "b" * MOST, 0).message
    assert f"[... {MOST:,} characters are left out here ...]" in told
    assert told.count("a") < MOST
    assert told.endswith("b" * (MOST // 2))


# Completion.


def test_commands_their_arguments_and_files_are_completed(folder: Path) -> None:
    commands = {
        "switch": SlashCommand("switch", "", "", lambda _: {}, lambda _: ["talk", "other"]),
        "show": SlashCommand("show", "", "", lambda _: {}),
    }
    assert list(completions("/s", commands)) == ["/switch ", "/show "]
    assert list(completions("/switch t", commands)) == ["/switch talk"]
    assert list(completions("/show x", commands)) == []
    assert list(completions("see @a", commands)) == ["see @a.txt"]
    assert list(completions("see @b", commands)) == ['see @"b c.png"']
    assert list(completions("see @su", commands)) == ["see @sub/"]
    assert list(completions("ann@a", commands)) == []


# Picking.


def picked(keys: str, monkeypatch: pytest.MonkeyPatch, *, live: bool = True) -> int | None:
    """What is picked of three rows by somebody who presses these keys."""
    here, there = pty.openpty()
    with open(there, closefd=True) as terminal, open(os.devnull, "w") as out:
        monkeypatch.setattr("sys.stdin", terminal)
        console = Console(file=out, force_terminal=live, color_system="standard" if live else None, width=40)
        read, write = os.pipe()  # keys that are pressed once the list is there
        os.write(write, keys.encode())
        os.close(write)
        monkeypatch.setattr("forkpoint.cli.questions.choice.read_keys", lambda _: os.read(read, 64).decode())
        try:
            return choose(console, "Which?", ["one", "two", "three"])
        finally:
            os.close(read)
            os.close(here)


@pytest.mark.parametrize(
    ("keys", "row"),
    [
        ("\r", 0),
        (f"{DOWN}\r", 1),
        (f"{DOWN}{DOWN}{DOWN}\r", 0),
        ("k\r", 2),
        ("3", 2),
        ("9x2", 1),
        ("q", None),
        ("", None),
    ],
)
def test_a_row_is_picked_by_arrows_or_by_its_number(
    keys: str, row: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert picked(keys, monkeypatch) == row


def test_nothing_can_be_picked_of_nothing() -> None:
    assert choose(Console(), "Which?", []) is None


# All of it on a terminal.


def test_somebody_at_a_terminal_attaches_runs_picks_and_sees_where_they_are(tmp_path: Path) -> None:
    forkpoint = Program(tmp_path)
    (tmp_path / "a.txt").write_text("the words of a file")
    forkpoint.script(
        Reply("# A heading\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"),
        Reply("Let me think about that for a while", fault=Fault("hang", after=2)),
        Reply("once more"),
    )
    with Terminal(forkpoint, "chat", "talk", "--agent", "builds:agent", live=True, height=60) as terminal:
        terminal.wait_for_last_line(PROMPT)
        terminal.type("!echo from the shell\r")
        terminal.wait_for("This goes with your next message")
        terminal.wait_for_last_line(PROMPT)
        terminal.type("read @a.txt\r")
        terminal.wait_for("attached a.txt (19 bytes)")
        terminal.wait_for("A heading\n\na   b\n")
        terminal.wait_for("✓ committed")
        terminal.wait_for("talk · scripted/script.json · ")
        terminal.wait_for_last_line(PROMPT)
        terminal.type("and?\r")
        terminal.wait_for("Let me think")
        terminal.type("typed mean")
        terminal.wait_for("❯ typed mean")
        terminal.type("while\r")
        terminal.wait_for("queued: typed meanwhile")
        terminal.type("a draft")
        terminal.wait_for("❯ a draft")
        terminal.type(CTRL_C)
        terminal.wait_for("✗ cancelled")
        terminal.wait_for("Not sent, since the turn was stopped: typed meanwhile")
        terminal.wait_for_last_line("❯ a draft")  # it is there to go on with
        terminal.press(CTRL_C, "Ctrl-C again leaves")
        terminal.wait_for_last_line(PROMPT)
        terminal.type("/regenerate\r")
        terminal.wait_for("What stood there is kept: /switch ")
        terminal.wait_for("once more\n✓ committed")
        terminal.wait_for_last_line(PROMPT)
        terminal.type("/rewind\r")
        terminal.wait_for("❯  1  read @a.txt")
        terminal.type("\x1b")
        terminal.wait_for("Nothing was changed.")
        terminal.wait_for_last_line(PROMPT)
        terminal.type("/quit\r")
        assert terminal.end() == 0
    assert terminal.text.count("✗ cancelled") == 1
    with Conversation.open("talk", bind=False, store=forkpoint.store) as conversation:
        (message,) = conversation.turns(committed=True).items[0].input
    told = [part.text for part in message.parts if isinstance(part, Text)]
    assert told[0].endswith("from the shell")
    assert told[1:] == ["read @a.txt", "[file a.txt]\nthe words of a file"]


def test_a_chat_without_a_name_offers_the_last_conversations(tmp_path: Path) -> None:
    forkpoint = Program(tmp_path)
    forkpoint.run("chat", "talk", *ECHO, stdin="hello there\n")
    with Terminal(forkpoint, "chat", live=True) as terminal:
        terminal.wait_for("❯  1  a new one")
        terminal.wait_for("   2  talk · ")
        terminal.type("2")
        terminal.wait_for("conversation talk")
        terminal.wait_for_last_line(PROMPT)
        terminal.type("\x04")
        assert terminal.end() == 0


def test_files_of_the_command_line_go_with_the_first_message_and_the_last_conversation_is_gone_on_with(
    tmp_path: Path,
) -> None:
    forkpoint = Program(tmp_path)
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "p.png").write_bytes(PNG)
    forkpoint.run("chat", "talk", *ECHO, "--file", "a.txt", "--image", "p.png", stdin="first @a.txt\nsecond\n")
    done = forkpoint.run("chat", "--last", "--json", stdin="third\n!echo no\n")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["talk", "talk"]
    with Conversation.open("talk", bind=False, store=forkpoint.store) as conversation:
        given = [turn.input[0].parts for turn in conversation.turns().items]
    assert [len(parts) for parts in given] == [3, 1, 1, 1]
    assert isinstance(given[0][0], Image)
    assert given[3] == (Text("!echo no"),)  # only what is typed at a keyboard runs commands, and names files
