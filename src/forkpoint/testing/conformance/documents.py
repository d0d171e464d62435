"""What is asked of a store's shelf: texts of the whole store, changed by one at a time."""

import pytest

from forkpoint.errors import BadName, NotWhole
from forkpoint.store.protocol import Store
from forkpoint.testing.conformance.base import Conformance


class DocumentConformance(Conformance):
    async def test_a_document_is_read_as_it_was_put_and_has_a_version(self, store: Store) -> None:
        assert await store.document("keys", "mine") is None
        assert await store.document_versions("keys") == {}
        version = await store.put_document("keys", "mine", '{"a": "\u00e4"}\n', if_version=0)
        found = await store.document("keys", "mine")
        assert version is not None
        assert found is not None
        assert (found.kind, found.name, found.version, found.text) == ("keys", "mine", version, '{"a": "\u00e4"}\n')
        assert await store.document_versions("keys") == {"mine": version}
        assert await store.document("config", "mine") is None

    async def test_a_document_is_changed_only_by_whoever_has_seen_it_as_it_is(self, store: Store) -> None:
        first = await store.put_document("keys", "mine", "one", if_version=0)
        assert first is not None
        assert await store.put_document("keys", "mine", "two", if_version=0) is None
        assert await store.put_document("keys", "mine", "two", if_version=first + 1) is None
        assert await store.put_document("keys", "mine", None, if_version=first + 1) is None
        second = await store.put_document("keys", "mine", "two", if_version=first)
        assert second is not None
        assert second > first
        assert await store.put_document("keys", "mine", "three", if_version=first) is None
        found = await store.document("keys", "mine")
        assert found is not None
        assert (found.text, found.version) == ("two", second)

    async def test_a_document_that_was_removed_comes_back_with_another_version(self, store: Store) -> None:
        first = await store.put_document("keys", "mine", "one", if_version=0)
        assert first is not None
        assert await store.put_document("keys", "mine", None, if_version=first) is not None
        assert await store.document("keys", "mine") is None
        assert await store.put_document("keys", "mine", "two", if_version=first) is None
        again = await store.put_document("keys", "mine", "two", if_version=0)
        assert again not in (None, first)

    async def test_documents_belong_to_the_store_and_to_no_tenant(self, store: Store) -> None:
        version = await store.put_document("keys", "mine", "one", if_version=0)
        other = store.within("other")
        assert await other.document_versions("keys") == {"mine": version}
        found = await other.document("keys", "mine")
        assert found is not None
        assert found.text == "one"

    async def test_what_is_no_name_or_no_text_is_refused(self, store: Store) -> None:
        with pytest.raises(BadName):
            await store.put_document("keys", "not a name", "one", if_version=0)
        with pytest.raises(NotWhole):
            await store.put_document("keys", "mine", "a\0b", if_version=0)
        assert await store.document_versions("keys") == {}
