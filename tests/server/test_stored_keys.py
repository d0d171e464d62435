"""Keys in the store: all servers on it have the same, a change reaches them all, and none needs a file."""

import logging
import time
from pathlib import Path

import httpx2
import pytest
from tests.server.support.serving import ServerProcess, served
from tests.server.support.turning import PATIENCE

from forkpoint.errors import AlreadyExists, BadKeys, NotFound, StoreUnavailable
from forkpoint.server.http import stored_keys as module
from forkpoint.server.http.keys import Keyring
from forkpoint.server.http.stored_keys import KIND, NAME, StoredKeys, add_stored_key, list_stored_keys, stored_keys
from forkpoint.server.shelf import KeysInStore, read_shelf
from forkpoint.store import Store, open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'server.db'}"


def status(url: str, token: str) -> int:
    return httpx2.get(f"{url}/api/agents", headers={"Authorization": f"Bearer {token}"}).status_code


def until(url: str, token: str, wanted: int) -> None:
    """Waits until a server answers a key like this."""
    deadline = time.monotonic() + PATIENCE
    while status(url, token) != wanted:
        assert time.monotonic() < deadline, f"the server never said {wanted}"
        time.sleep(0.01)


def test_a_key_is_made_listed_changed_and_revoked_and_only_its_hash_is_kept(address: str) -> None:
    place = KeysInStore(address)
    assert place.list() == ()
    made = place.add("ann", "acme", role="use", history="full")
    assert place.list() == (made.key,)
    assert (made.key.tenant, made.key.role, made.key.history) == ("acme", "use", "full")
    assert made.token not in Path(address.removeprefix("sqlite:///")).read_bytes().decode(errors="replace")
    with pytest.raises(AlreadyExists):
        place.add("ann", "other", role="read", history=None)
    assert place.change_role("ann", "read").role == "read"
    keys = read_shelf(address, print).keys
    assert keys is not None
    found = keys.find(made.token)
    assert found is not None
    assert (found.id, found.role) == (made.key.id, "read")
    assert keys.find(made.token + "x") is None
    assert place.revoke(made.token).id == made.key.id
    assert place.list() == ()
    with pytest.raises(NotFound):
        place.revoke("ann")
    emptied = read_shelf(address, print).keys
    assert emptied is not None, "a store whose last key was revoked must not stand open"
    assert emptied.find(made.token) is None


async def test_of_two_who_change_keys_at_once_neither_is_lost() -> None:
    async with await open_store("memory:") as store:

        class Raced:
            """A store in which somebody else adds a key just before the first write."""

            raced = False

            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

            async def put_document(self, *args: object, **kwargs: object) -> object:
                if not self.raced:
                    self.raced = True
                    await add_stored_key(store, "here", "faster")
                return await store.put_document(*args, **kwargs)  # type: ignore[arg-type]

        racing: Store = Raced()  # type: ignore[assignment]
        await add_stored_key(racing, "here", "slower")
        assert [key.name for key in await list_stored_keys(store, "here")] == ["faster", "slower"]


async def test_while_the_store_does_not_answer_or_has_nonsense_the_keys_stay_as_they_were(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with await open_store("memory:") as store:
        token = (await add_stored_key(store, "here", "ann")).token
        keys = await stored_keys(store)
        assert keys is not None
        version = (await store.document_versions(KIND))[NAME]
        for text in ("{", '{"version": 2, "keys": []}', None):
            version = await store.put_document(KIND, NAME, text, if_version=version) or 0
            with pytest.raises(BadKeys):
                await keys.refresh(store)
            assert keys.find(token) is not None
    with pytest.raises(StoreUnavailable):
        await keys.refresh(store)
    assert keys.find(token) is not None
    assert token not in caplog.text


@pytest.mark.parametrize("database", ["address", "postgres"])
def test_a_running_server_takes_a_new_key_and_refuses_a_revoked_one(
    database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = str(request.getfixturevalue(database))
    monkeypatch.setattr(module, "LOOK", 0.01)
    caplog.set_level(logging.INFO)
    place = KeysInStore(address)
    first = place.add("ann", "acme", role="use", history=None)
    keys = read_shelf(address, print).keys
    assert isinstance(keys, StoredKeys)
    with served(address, keyring=Keyring([keys])) as server:
        assert (status(server.url, first.token), status(server.url, "fp_nobody")) == (200, 401)
        second = place.add("ben", "acme", role="read", history=None)
        until(server.url, second.token, 200)
        place.revoke("ann")
        until(server.url, first.token, 401)
        place.revoke("ben")
        until(server.url, second.token, 401)
    assert first.token not in caplog.text


def test_a_server_needs_nothing_but_the_address_of_its_store(tmp_path: Path) -> None:
    from forkpoint.server.shelf import put_config

    address = f"sqlite:///{tmp_path / 'server.db'}"
    token = KeysInStore(address).add("ann", "acme", role="use", history=None).token
    text = '[server]\nhost = "0.0.0.0"\nlog_level = "warning"\n[agents.echo]\nmodel = "scripted/echo"\n'
    assert not put_config(address, text)
    with ServerProcess(folder=tmp_path, store=address) as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert status(url, "fp_nobody") == 401
        found = httpx2.get(f"{url}/api/agents", headers={"Authorization": f"Bearer {token}"}).json()
        assert [agent["name"] for agent in found["items"]] == ["echo"]
        assert server.terminate() == 0
