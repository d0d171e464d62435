"""``forkpoint backup`` and ``restore``, and reading a store where nothing may be written."""

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.program import Program, agent

from forkpoint import AsyncConversations, Conversation, Conversations
from forkpoint.cli.commands.care import copies
from forkpoint.cli.commands.care.copies import Progress
from forkpoint.conversation import CopyStep
from forkpoint.errors import CopyRefused


@pytest.fixture
def forkpoint(tmp_path: Path) -> Program:
    return Program(tmp_path)


def talk(forkpoint: Program, name: str) -> None:
    with Conversation(agent("copies"), conversation_id=name, store=forkpoint.store) as made:
        made.run("hi")


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def names(store: str) -> list[str]:
    with Conversations(store) as conversations:
        assert conversations.verify().ok
        return sorted(info.name for info in conversations.list().items)


def test_a_store_is_backed_up_lost_and_restored(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    made = forkpoint.json("backup", "monday.db")
    path = forkpoint.folder / "monday.db"
    assert made == {
        "path": str(path),
        "bytes": path.stat().st_size,
        "conversations": 1,
        "events": 4,
        "format": made["format"],
        "taken": made["taken"],
        "anchor": made["anchor"],
    }
    talk(forkpoint, "two")
    refused = forkpoint.run("backup", "monday.db")
    assert (refused.returncode, "--force" in refused.stderr) == (1, True)
    assert "2 conversations, 8 events" in forkpoint.text("backup", "monday.db", "--force")
    for file in forkpoint.folder.glob("store.db*"):
        shutil.rmtree(file) if file.is_dir() else file.unlink()
    refused = forkpoint.run("restore", "monday.db")
    assert refused.returncode == 1
    assert "--erasures FILE" in refused.stderr
    assert "--forget-erasures" in refused.stderr
    assert "2 conversations" in forkpoint.text("restore", "monday.db", "--forget-erasures")
    assert names(forkpoint.store) == ["one", "two"]
    refused = forkpoint.run("restore", "monday.db", "--forget-erasures")
    assert (refused.returncode, "--force" in refused.stderr) == (1, True)
    restored = forkpoint.json("restore", "monday.db", "--forget-erasures", "--force")
    assert (restored["conversations"], restored["events"], restored["erasures"]) == (2, 8, 0)
    assert names(f"sqlite:///{restored['kept']}") == ["one", "two"]
    (forkpoint.folder / "anchor").write_text(json.dumps(made["anchor"]))
    assert forkpoint.json("verify", "--anchor", "anchor")["flaws"] == []


def test_what_cannot_be_copied_says_what_to_do(forkpoint: Program) -> None:
    before = files(forkpoint.folder)
    assert "no store" in forkpoint.run("backup", "x.db").stderr
    assert "the machine that has its file" in forkpoint.run("backup", "x.db", "--store", "http://127.0.0.1:9").stderr
    server = forkpoint.run("restore", "x.db", "--forget-erasures", "--store", "http://127.0.0.1:9", "--json")
    assert json.loads(server.stderr)["error"]["code"] == "on_a_server"
    assert "no backup" in forkpoint.run("restore", "x.db", "--forget-erasures").stderr
    assert "only a file" in forkpoint.run("restore", "x.db", "--forget-erasures", "--store", "memory:").stderr
    assert files(forkpoint.folder) == before


def test_the_library_does_the_same(forkpoint: Program) -> None:
    talk(forkpoint, "one")
    steps: list[CopyStep] = []
    backup = forkpoint.folder / "monday.db"
    with Conversations(forkpoint.store) as conversations:
        made = conversations.backup(backup, progress=steps.append)
        assert (made.conversations, made.events) == (1, 4)
        with pytest.raises(CopyRefused) as refused:
            conversations.restore(backup, forget_erasures=True, force=True)
        assert CopyRefused.store_in_use.made(refused.value), "it is open in this very process"
    assert {step.stage for step in steps} == {"copying", "checking"}
    restored = Conversations(f"sqlite:///{forkpoint.folder}/new.db").restore(backup, forget_erasures=True)
    assert names(f"sqlite:///{restored.path}") == ["one"]


@pytest.mark.anyio
async def test_a_server_s_store_is_not_copied_from_afar() -> None:
    async with AsyncConversations("http://127.0.0.1:9") as conversations:
        for copy in (conversations.backup("x.db"), conversations.restore("x.db", forget_erasures=True)):
            with pytest.raises(CopyRefused) as refused:
                await copy
            assert CopyRefused.on_a_server.made(refused.value)


def test_commands_that_look_make_no_store_and_write_nothing_with_mode_ro(forkpoint: Program) -> None:
    before = files(forkpoint.folder)
    for look in (["list"], ["show", "it"], ["usage"], ["verify"]):
        forkpoint.run(*look)
    forkpoint.run("list", "--store", f"{forkpoint.store}?mode=ro")
    assert files(forkpoint.folder) == before
    talk(forkpoint, "it")
    before = files(forkpoint.folder)
    there = ("--store", f"{forkpoint.store}?mode=ro")
    assert "it" in forkpoint.text("list", *there)
    assert "it" in forkpoint.text("show", "it", *there)
    assert "as it was written" in forkpoint.text("verify", *there)
    assert "1 conversation," in forkpoint.text("doctor", *there)
    for change in (("describe", "it", "--title", "x"), ("fork", "it"), ("run", "-c", "it", "x")):
        refused = forkpoint.run(*change, *there)
        assert (refused.returncode, "open for reading only" in refused.stderr) == (1, True), refused.stderr
    assert files(forkpoint.folder) == before


def test_a_copy_that_takes_a_while_says_how_far_it_has_come(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = Progress()
    progress(CopyStep("copying", 1_000_000, 4_000_000))
    assert capsys.readouterr().err == "", "the first second is over at once"
    monkeypatch.setattr(copies, "PATIENCE", 0.0)
    progress(CopyStep("copying", 1_000_000, 4_000_000))
    progress(CopyStep("checking", 0, 4_000_000))
    assert capsys.readouterr() == ("", "copying 1.0 MB of 4.0 MB\nchecking 4.0 MB\n")
