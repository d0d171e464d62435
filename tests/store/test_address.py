"""A store's address: what each spelling means, and that nothing else passes for one."""
# ruff: noqa: ASYNC240 - nothing else runs on these loops, so blocking them holds nobody up

import os
from pathlib import Path
from urllib.parse import quote

import pytest

from forkpoint.errors import BadName, BadStoreUrl, NotFound
from forkpoint.ids import new_id
from forkpoint.store import open_store
from forkpoint.store.values import DEFAULT_TENANT, NewConversation
from forkpoint.testing.samples import exchange

pytestmark = pytest.mark.anyio


async def made_at(url: str) -> None:
    """Opens a store at an address and leaves a conversation in it."""
    async with await open_store(url) as store:
        await store.create(NewConversation(id=new_id(), name="here"), exchange("hi"))


async def found_at(url: str) -> bool:
    async with await open_store(url) as store:
        try:
            await store.find("here")
        except NotFound:
            return False
        return True


async def refused(url: str) -> BadStoreUrl:
    try:
        store = await open_store(url)
    except BadStoreUrl as error:
        return error
    except (OSError, ValueError) as raw:
        pytest.fail(f"{url!a} gives a bare {raw!a}, not an error with a code")
    await store.close()
    pytest.fail(f"{url!a} was taken for a store's address")


async def test_three_slashes_are_a_path_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    await made_at("sqlite:///here.db")
    await made_at("sqlite:///below/here.db")
    await made_at("sqlite:///./below/../there.db")
    assert {path.name for path in tmp_path.glob("**/*.db")} == {"here.db", "there.db"}
    assert await found_at(f"sqlite:///{tmp_path}/below/here.db")
    assert await found_at(f"sqlite:///{tmp_path}/there.db")


async def test_four_slashes_are_a_path_from_the_root(tmp_path: Path) -> None:
    assert str(tmp_path).startswith("/")
    await made_at(f"sqlite:///{tmp_path}/here.db")
    assert (tmp_path / "here.db").is_file()
    assert await found_at(f"sqlite:///{tmp_path}/here.db")


@pytest.mark.parametrize(
    "spelled", ["here.db", "./here", "here.SQLITE", "here.sqlite3", "below/../here", "a b%41?.db", "~/home.db", "there"]
)
async def test_a_plain_path_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str) -> None:
    """A name without an ending or a separator is a path only if the file exists."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "below").mkdir()
    await made_at("sqlite:///there" if spelled == "there" else spelled)
    file = os.path.normpath(spelled.replace("~", str(tmp_path)))
    assert await found_at(f"sqlite:///{quote(file)}?mode=ro"), sorted(os.listdir(tmp_path))
    assert await found_at(f"{spelled}?mode=ro")


@pytest.mark.parametrize(
    "spelled", ["here", "sqlite:here.db", "localhost:8008", "127.0.0.1:8008/x", "file:here.db", " "]
)
async def test_what_is_neither_an_address_nor_a_path_is_told_both_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = str(await refused(spelled))
    assert "./file.db" in said
    assert "sqlite:///" in said
    assert os.listdir(tmp_path) == []


async def test_a_relative_address_means_the_folder_it_was_opened_in_for_as_long_as_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with await open_store("sqlite:///here.db") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        made = await store.create(NewConversation(id=new_id()), exchange("hi"))
        await store.begin(made.id, new_id())
        assert len(await store.events(made.id)) == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("with%20space.db", "with space.db"),
        ("with space.db", "with space.db"),
        ("100%25.db", "100%.db"),
        ("%C3%A9.db", "é.db"),
        ("é.db", "é.db"),
        ("question%3Fmark.db", "question?mark.db"),
        ("plus+plus.db", "plus+plus.db"),
        ("a%2Fb.db", "a/b.db"),
        ("100%.db", "100%.db"),
        ("%zz.db", "%zz.db"),
    ],
)
async def test_percent_escapes_are_undone_once(tmp_path: Path, spelled: str, name: str) -> None:
    (tmp_path / "a").mkdir()
    await made_at(f"sqlite:///{tmp_path}/{spelled}")
    assert (tmp_path / name).is_file(), f"{spelled} made {sorted(path.name for path in tmp_path.iterdir())}"


async def test_a_file_name_that_is_not_utf_8_can_be_spelled_with_escapes_or_is_refused(tmp_path: Path) -> None:
    """Never is another file taken for it."""
    raw = os.fsencode(tmp_path) + b"/a\xff.db"
    try:
        await made_at(f"sqlite:///{quote(raw)}")
    except BadStoreUrl:
        return
    made = sorted(name for name in os.listdir(os.fsencode(tmp_path)) if name.endswith(b".db"))
    assert made == [b"a\xff.db"], f"%FF was turned into another name, so that two addresses share a store: {made}"


async def test_memory_is_a_store_of_its_own_that_nobody_else_sees() -> None:
    async with await open_store("memory:") as one, await open_store("memory:") as two:
        made = await one.create(NewConversation(id=new_id(), name="here"), exchange("hi"))
        assert len(await one.events(made.id)) == 2
        with pytest.raises(NotFound):
            await two.read(made.id)
    assert not await found_at("memory:")


@pytest.mark.parametrize(
    "url",
    [
        "",
        " ",
        "memory",
        "memory:x",
        "Memory:",
        " memory:",
        "memory:\n",
        ":memory:",
        "sqlite:",
        "sqlite://",
        "sqlite:here.db",
        "sqlite://here.db",
        "sqlite://localhost/here.db",
        "SQLITE:///here.db",
        " sqlite:///here.db",
        "sqlite3:///here.db",
        "file:///here.db",
        "mysql://host/db",
        "ftp://host/here.db",
        "rubbish",
        "\0",
        "\ud800",
    ],
    ids=ascii,
)
async def test_an_address_of_no_known_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = await refused(url)
    assert error.url == url
    assert "sqlite:///" in str(error), "the error must show how an address is spelled"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    ["", "a\0b.db", "a%00b.db", "%00", "\ud800.db", "missing/here.db", "."],
    ids=["empty", "NUL", "escaped NUL", "only NUL", "lone surrogate", "missing folder", "a folder"],
)
async def test_an_address_that_names_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = await refused(f"sqlite:///{path}")
    assert error.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["mysql://user:s3cret@host/db", "https://user:s3cret@host:8008", "sqlite://user:s3cret@host/here.db"]
)
async def test_a_password_in_an_address_does_not_show_in_the_error(url: str) -> None:
    error = await refused(url)
    assert "s3cret" not in str(error), "errors end up in logs; a password in an address must not"
    assert "s3cret" not in repr(error)


async def test_a_store_is_seen_from_the_tenant_that_was_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/here.db"
    async with await open_store(url, tenant="acme") as store:
        assert store.tenant == "acme"
        made = await store.create(NewConversation(id=new_id()), exchange("hi"))
    async with await open_store(url) as store:
        assert store.tenant == DEFAULT_TENANT
        with pytest.raises(NotFound):
            await store.read(made.id)


async def test_a_bad_tenant_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(BadName):
        await open_store(f"sqlite:///{tmp_path}/here.db", tenant="../other")
    assert list(tmp_path.iterdir()) == []
