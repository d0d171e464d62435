"""No path leads out of the workspace, whatever it is made of and whatever is swapped meanwhile."""

import os
import threading
from pathlib import Path

import pytest
from tests.agent.builtin.calls import Calls

from forkpoint.agent.builtin import TOOLS, edit_file, list_files, read_file, search_files, shell, write_file
from forkpoint.agent.builtin.failure import ToolFailed
from forkpoint.agent.builtin.paths import Workspace
from forkpoint.agent.builtin.regex_process import Below

pytestmark = pytest.mark.anyio


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with something in it, beside a secret that is not in it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("secret\n")
    made = tmp_path / "workspace"
    (made / "src").mkdir(parents=True)
    (made / "src" / "a.txt").write_text("one\ntwo\n")
    return made


@pytest.fixture
def calls(workspace: Path) -> Calls:
    return Calls(workspace)


ARGUMENTS = {
    read_file: {"path": "a"},
    write_file: {"path": "a", "content": "b"},
    edit_file: {"path": "a", "old": "b", "new": "c"},
    list_files: {},
    search_files: {"pattern": "a"},
    shell: {"command": "true"},
}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
async def test_without_a_workspace_a_tool_says_so(tool: object, tmp_path: Path) -> None:
    arguments = ARGUMENTS[tool]  # type: ignore[index]
    assert "no workspace" in await Calls(None)(tool, **arguments)  # type: ignore[arg-type]
    gone = await Calls(tmp_path / "gone")(tool, **arguments)  # type: ignore[arg-type]
    assert gone.startswith("FAILED")
    assert "cannot be opened (No such file or directory)" in gone


def test_tools_say_what_is_risky_and_what_may_be_repeated() -> None:
    assert {tool.name for tool in TOOLS if tool.risky} == {"shell", "write_file", "edit_file"}
    assert {tool.name for tool in TOOLS if tool.repeatable} == {"read_file", "list_files", "search_files"}
    assert all(tool.path is not None for tool in TOOLS), "a stored agent finds them by their path"


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret.txt",
        "src/../../outside/secret.txt",
        "src/./.././../outside/secret.txt",
        "{outside}/secret.txt",
        "{workspace}/../outside/secret.txt",
        "/etc/passwd",
        "/proc/self/environ",
        "/dev/zero",
        "file-link",
        "folder-link/secret.txt",
        "src/deep-link/secret.txt",
        "chain",
        "absolute-link",
        "folder-link/../workspace/src/a.txt",
    ],
)
async def test_a_path_that_leads_out_is_neither_read_nor_written(path: str, workspace: Path, calls: Calls) -> None:
    outside = workspace.parent / "outside"
    (workspace / "file-link").symlink_to("../outside/secret.txt")
    (workspace / "folder-link").symlink_to("../outside")
    (workspace / "src" / "deep-link").symlink_to("../../outside")
    (workspace / "chain").symlink_to("src/next")
    (workspace / "src" / "next").symlink_to("../file-link")
    (workspace / "absolute-link").symlink_to(outside / "secret.txt")
    path = path.format(outside=outside, workspace=workspace)
    for tool, arguments in ARGUMENTS.items():
        if tool is not shell:
            told = await calls(tool, **{**arguments, "path": path})
            assert told.startswith("FAILED"), f"{tool.name} took {path}"
            assert "leads out of the workspace" in told
    assert (outside / "secret.txt").read_text() == "secret\n"
    assert sorted(os.listdir(outside)) == ["secret.txt"]


async def test_a_dangling_link_to_the_outside_creates_nothing_there(workspace: Path, calls: Calls) -> None:
    (workspace / "new").symlink_to("../outside/new.txt")
    assert "leads out" in await calls(write_file, path="new", content="x")
    assert not (workspace.parent / "outside" / "new.txt").exists()
    assert (workspace / "new").is_symlink()


async def test_links_within_the_workspace_are_followed_and_stay_links(workspace: Path, calls: Calls) -> None:
    (workspace / "inside").symlink_to("src/../src")
    (workspace / "absolute").symlink_to(workspace / "src" / "a.txt")
    (workspace / "dangling").symlink_to("src/new.txt")
    assert "1\tone" in await calls(read_file, path="inside/a.txt")
    assert "1\tone" in await calls(read_file, path="inside/../src/a.txt"), "up from where the link leads"
    await calls(edit_file, path="absolute", old="one", new="ONE")
    await calls(write_file, path="dangling", content="new\n")
    assert (workspace / "src" / "a.txt").read_text() == "ONE\ntwo\n"
    assert (workspace / "src" / "new.txt").read_text() == "new\n"
    assert (workspace / "absolute").is_symlink()
    assert (workspace / "dangling").is_symlink()


@pytest.mark.parametrize("path", ["a.txt", "/a.txt", "//a.txt", "/./x/../a.txt", "/"])
async def test_absolute_paths_in_the_workspace_are_fine(path: str, workspace: Path, calls: Calls) -> None:
    (workspace / "src" / "x").mkdir()
    assert not (await calls(read_file, path=f"{workspace}/src{path if path[0] == '/' else '/' + path}")).startswith(
        "FAIL"
    )


async def test_a_workspace_that_is_named_through_a_link_is_the_same(workspace: Path) -> None:
    link = workspace.parent / "link"
    link.symlink_to(workspace)
    calls = Calls(link)
    for path in (f"{link}/src/a.txt", f"{workspace}/src/a.txt", "src/a.txt"):
        assert "1\tone" in await calls(read_file, path=path)


@pytest.mark.parametrize("path", ["loop", "loop/x", "a", "here/here/here/x"])
async def test_links_in_a_circle_come_to_an_end(path: str, workspace: Path, calls: Calls) -> None:
    (workspace / "loop").symlink_to("loop")
    (workspace / "a").symlink_to("b")
    (workspace / "b").symlink_to("a")
    (workspace / "here").symlink_to(".")
    told = await calls(read_file, path=path)
    assert "circle" in told or "There is no file x" in told


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 300, "/".join(["d"] * 3000), "src/a.txt/b", "src/a.txt/"])
async def test_a_path_that_cannot_be_is_a_clear_failure(path: str, workspace: Path, calls: Calls) -> None:
    for tool in (read_file, list_files):
        assert (await calls(tool, path=path)).startswith("FAILED ToolFailed: ")
    assert (await calls(write_file, path=path, content="x")).startswith("FAILED ToolFailed: ")


@pytest.mark.parametrize(
    "path",
    [".git/config", ".git/hooks/pre-commit", ".git", "src/.git/x", ".GIT/config", ".g\u200cit/config", "hooks/x"],
)
async def test_what_belongs_to_git_is_not_written(path: str, workspace: Path, calls: Calls) -> None:
    (workspace / ".git" / "hooks").mkdir(parents=True)
    (workspace / ".git" / "config").write_text("[core]\n")
    (workspace / "hooks").symlink_to(".git/hooks")
    assert "belongs to git" in await calls(write_file, path=path, content="x")
    assert "belongs to git" in await calls(edit_file, path=path, old="core", new="x")
    assert (workspace / ".git" / "config").read_text() == "[core]\n"
    assert "[core]" in await calls(read_file, path=".git/config"), "it may be read"


@pytest.mark.parametrize(
    "path",
    [
        ".forkpoint/config.toml",
        ".forkpoint/skills/a.md",
        ".forkpoint",
        "src/.forkpoint/x",
        ".ForkPoint/x",
        "skills/a.md",
    ],
)
async def test_what_belongs_to_forkpoint_is_not_written(path: str, workspace: Path, calls: Calls) -> None:
    (workspace / ".forkpoint" / "skills").mkdir(parents=True)
    (workspace / ".forkpoint" / "config.toml").write_text('approval = "risky"\n')
    (workspace / "skills").symlink_to(".forkpoint/skills")
    assert "belongs to Forkpoint" in await calls(write_file, path=path, content="x")
    assert "belongs to Forkpoint" in await calls(edit_file, path=path, old="risky", new="never")
    assert (workspace / ".forkpoint" / "config.toml").read_text() == 'approval = "risky"\n'
    assert not (workspace / ".forkpoint" / "skills" / "a.md").exists()
    assert "risky" in await calls(read_file, path=".forkpoint/config.toml"), "it may be read"


async def test_a_pipe_and_a_socket_are_never_waited_for(workspace: Path, calls: Calls) -> None:
    os.mkfifo(workspace / "pipe")
    (workspace / "link").symlink_to("pipe")
    for path in ("pipe", "link"):
        assert "is a pipe, not a file" in await calls(read_file, path=path)
        assert "is a pipe, not a file" in await calls(edit_file, path=path, old="a", new="b")
        assert "is a pipe, not a file" in await calls(write_file, path=path, content="b")
    assert "No line matches. Files searched: 1" in await calls(search_files, pattern="zzz")
    assert "pipe" not in await calls(list_files, pattern="pip*")


async def test_a_device_is_not_read(workspace: Path, calls: Calls) -> None:
    try:
        os.mknod(workspace / "zero", 0o020666, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only an administrator can make a device")
    assert "is a device, not a file" in await calls(read_file, path="zero")
    assert "is a device, not a file" in await calls(write_file, path="zero", content="x")


def test_a_folder_is_not_entered_through_a_link_even_if_it_was_a_folder_before(workspace: Path) -> None:
    with Workspace(workspace) as opened, Below(opened.folder) as below:
        assert below.folder(["src"]) != opened.folder
        below.folder([])
        (workspace / "src").rename(workspace / "moved")
        (workspace / "src").symlink_to("../outside")
        with pytest.raises(OSError):
            below.folder(["src"])


async def test_a_swap_between_looking_and_opening_never_leads_out(workspace: Path) -> None:
    """A folder turns into a link to the outside and back, as fast as can be, while files are read and written."""
    inside, outside, link = workspace / "turning", workspace.parent / "outside", workspace.parent / "link"
    inside.mkdir()
    (inside / "secret.txt").write_text("harmless\n")
    link.symlink_to(outside)
    done = threading.Event()

    def turn() -> None:
        while not done.is_set():
            inside.rename(workspace / "aside")
            os.rename(link, inside)
            os.rename(inside, link)
            (workspace / "aside").rename(inside)

    turning = threading.Thread(target=turn)
    turning.start()
    read: set[str] = set()
    try:
        for number in range(1500):
            try:
                with Workspace(workspace) as opened, opened.place("turning/secret.txt") as place:
                    handle = place.open()
                    read.add(os.read(handle, 100).decode())
                    os.close(handle)
                with Workspace(workspace) as opened, opened.place(f"turning/{number}", write=True) as place:
                    os.close(os.open(place.name, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW, dir_fd=place.folder))
            except (ToolFailed, OSError):
                continue
    finally:
        done.set()
        turning.join()
    assert read <= {"harmless\n"}
    assert os.listdir(outside) == ["secret.txt"]
