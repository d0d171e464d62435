"""Conversations: made, found, listed, described."""

import pytest
from msgspec.structs import replace

from forkpoint.errors import AlreadyExists, BadArgument, BadName, Busy, KeyReused, NotFound, NotWhole, Stale
from forkpoint.events import Position, Usage
from forkpoint.ids import new_id
from forkpoint.paging import every
from forkpoint.store.protocol import Store
from forkpoint.store.values import IdempotencyKey, Lineage, NewConversation, NewFork, OpenTurn
from forkpoint.testing.conformance.base import Conformance, begin, create, fork_of, run, texts
from forkpoint.testing.samples import answers, exchange, says


class ConversationConformance(Conformance):
    async def test_a_new_conversation_is_empty_and_idle(self, store: Store) -> None:
        made = await create(store, "first")
        assert (made.name, made.revision, made.status, made.draft) == ("first", 0, "idle", False)
        assert made.head.position is None
        assert made.lineage.kind == "root"
        assert made.family == made.id
        assert await store.events(made.id) == []
        assert await store.read(made.id) == made
        assert await store.find("first") == made

    async def test_a_conversation_without_a_name_is_found_under_its_id(self, store: Store) -> None:
        made = await create(store)
        assert await store.find(made.id) == made

    async def test_events_given_at_creation_are_its_first_note(self, store: Store) -> None:
        made = await store.create(NewConversation(id=new_id()), exchange("imported"))
        assert texts(await store.events(made.id)) == ["imported", "You said: imported"]
        assert made.revision == 1
        (note,) = (await store.turns(made.id)).items
        assert (note.kind, note.outcome) == ("note", "committed")

    async def test_a_name_can_be_used_once(self, store: Store) -> None:
        first = await create(store, "taken")
        with pytest.raises(AlreadyExists):
            await create(store, "taken")
        with pytest.raises(AlreadyExists):
            await store.create(NewConversation(id=first.id, name="other"))
        assert await store.find("taken") == first

    @pytest.mark.parametrize("name", ["", ".", "..", "../up", "a b", "nul\0", "ü", "x" * 129, "a/b"])
    async def test_a_name_with_other_characters_is_refused(self, store: Store, name: str) -> None:
        with pytest.raises(BadName):
            await create(store, name)

    async def test_what_does_not_exist_is_not_found(self, store: Store) -> None:
        for missing in (new_id(), "no-id", ""):
            with pytest.raises(NotFound):
                await store.read(missing)
            with pytest.raises(NotFound):
                await store.find(missing)
            with pytest.raises(NotFound):
                await store.turn(missing)
            with pytest.raises(NotFound):
                await store.events(missing)
            with pytest.raises(NotFound):
                await store.begin(missing, new_id())
            with pytest.raises(NotFound):
                await store.fork(missing, fork_of())
            with pytest.raises(NotFound):
                await store.delete(missing)
            with pytest.raises(NotFound):
                await store.describe(missing, title="x")
            with pytest.raises(NotFound):
                await store.approvals(missing)
            with pytest.raises(NotFound):
                await store.change_approvals(missing, "[1]", if_approvals="[]")
            with pytest.raises(NotFound):
                await store.rename(missing, "x")

    async def test_a_list_is_paged_newest_first_and_complete(self, store: Store) -> None:
        made = [(await create(store)).id for _ in range(7)]
        seen = [record.id async for record in every(store.conversations, limit=3)]
        assert seen == sorted(made, reverse=True)

    async def test_a_list_can_be_narrowed_by_tag_status_and_family(self, store: Store) -> None:
        root, other = await create(store), await create(store)
        fork = await store.fork(root.id, fork_of(tags=(("kind", "debug"), ("team", "ci"))))
        await begin(store, other.id)

        async def ids(**filters: object) -> set[str]:
            return {record.id for record in (await store.conversations(**filters)).items}  # type: ignore[arg-type]

        assert await ids(tags=(("kind", "debug"),)) == {fork.id}
        assert await ids(tags=(("kind", "debug"), ("team", "ci"))) == {fork.id}
        assert await ids(tags=(("kind", "debug"), ("team", "web"))) == set()
        assert await ids(family=root.id) == {root.id, fork.id}
        assert await ids(status="running") == {other.id}
        assert await ids(status="idle") == {root.id, fork.id}
        assert await ids(status="interrupted") == set()

    async def test_a_cursor_that_is_none_of_ours_is_refused(self, store: Store) -> None:
        made = await create(store)
        with pytest.raises(BadName, check=BadName.bad_cursor.made):
            await store.conversations(cursor="rubbish")
        with pytest.raises(BadName, check=BadName.bad_cursor.made):
            await store.turns(made.id, cursor="rubbish")

    async def test_title_and_tags_change_without_touching_the_revision(self, store: Store) -> None:
        made = await create(store)
        titled = await store.describe(made.id, title="Build 1234", tags=(("kind", "ci"),))
        assert (titled.title, titled.tags, titled.revision) == ("Build 1234", (("kind", "ci"),), made.revision)
        assert (await store.describe(made.id, tags=())).title == "Build 1234"
        assert (await store.describe(made.id, title="")).title is None

    async def test_a_description_that_has_changed_since_it_was_read_is_not_replaced(self, store: Store) -> None:
        made = await create(store)
        titled = await store.describe(made.id, title="Mine", if_unchanged=made)
        for old in (made, replace(titled, revision=7), replace(titled, tags=(("a", "b"),))):
            with pytest.raises(Stale):
                await store.describe(made.id, title="Theirs", tags=(("x", "y"),), if_unchanged=old)
        assert (await store.read(made.id)).title == "Mine"
        assert (await store.describe(made.id, tags=(("a", "b"),), if_unchanged=titled)).tags == (("a", "b"),)

    async def test_another_name_changes_neither_revision_nor_anything_else(self, store: Store) -> None:
        made = await create(store, "before")
        turn = await begin(store, made.id)
        renamed = await store.rename(made.id, "after")
        assert (renamed.name, renamed.revision, renamed.status, renamed.id) == ("after", 0, "running", made.id)
        assert await store.find("after") == renamed
        assert (await store.rename(made.id, "after")).name == "after"
        with pytest.raises(NotFound):
            await store.find("before")
        await store.commit(turn, exchange("not disturbed"))
        assert (await store.rename(made.id, None)).name == made.id
        assert (await store.find(made.id)).id == made.id
        await create(store, "before")
        await create(store, "after")

    async def test_name_title_and_tags_change_together_or_not_at_all(self, store: Store) -> None:
        made, _ = await create(store, "before"), await create(store, "taken")
        turn = await begin(store, made.id)
        changed = await store.describe(made.id, name="after", title="T", tags=(("a", "b"),))
        assert (changed.name, changed.title, changed.tags) == ("after", "T", (("a", "b"),))
        assert await store.find("after") == changed
        with pytest.raises(AlreadyExists):
            await store.describe(made.id, name="taken", title="Not this")
        with pytest.raises(BadName):
            await store.describe(made.id, name="a b", title="Not this")
        with pytest.raises(Stale):
            await store.describe(made.id, name="later", if_unchanged=replace(changed, name="before"))
        assert await store.describe(made.id, name="after") == await store.read(made.id) == changed, "its own name"
        await store.describe(made.id, name="later", if_unchanged=changed)
        assert (await store.commit(turn, exchange("not disturbed"))).revision == 1
        kinds = [record.kind for record in (await store.records(made.id)).items]
        assert kinds == ["born", "renamed", "described", "renamed", "committed"]
        assert (await store.verify()).ok

    async def test_nobody_begins_a_turn_under_a_name_that_the_conversation_has_lost(self, store: Store) -> None:
        made = await create(store, "before")
        await store.describe(made.id, name="after")
        before = await store.read(made.id)
        with pytest.raises(NotFound) as missing:
            await store.begin(made.id, new_id(), if_name="before", if_revision=before.revision)
        assert missing.value.id == "before"
        assert await store.read(made.id) == before, "the lock is free, and nothing else was touched"
        assert isinstance(await store.begin(made.id, new_id(), if_name="after"), OpenTurn)

    async def test_a_name_can_be_changed_only_if_nobody_has_moved_the_conversation_since(self, store: Store) -> None:
        made = await create(store, "before")
        await run(store, made.id, "moved")
        with pytest.raises(Stale):
            await store.rename(made.id, "after", if_revision=made.revision)
        now = await store.find("before")
        renamed = await store.rename(made.id, "after", if_revision=now.revision)
        assert (renamed.name, renamed.revision, renamed.head) == ("after", now.revision + 1, now.head)
        assert await store.find("after") == renamed
        with pytest.raises(NotFound):
            await store.find("before")
        with pytest.raises(NotFound):
            await store.rename(new_id(), "x", if_revision=0)

    async def test_who_read_a_conversation_before_it_got_another_name_so_begins_nothing_in_it(
        self, store: Store
    ) -> None:
        made = await create(store, "before")
        renamed = await store.rename(made.id, None, if_revision=made.revision)
        assert (renamed.name, renamed.revision) == (made.id, made.revision + 1)
        with pytest.raises(Stale):
            await store.begin(made.id, new_id(), if_revision=made.revision)
        with pytest.raises(Stale):
            await store.rename(made.id, "after", if_revision=made.revision)
        assert await store.read(made.id) == renamed
        assert isinstance(await store.begin(made.id, new_id(), if_revision=renamed.revision), OpenTurn)

    async def test_a_conversation_with_an_open_turn_keeps_its_name_if_its_revision_is_given(self, store: Store) -> None:
        made = await create(store, "mine")
        draft = NewConversation(id=new_id(), name="draft")
        for id, name, turn in (
            (made.id, "mine", await begin(store, made.id)),
            (draft.id, "draft", await store.begin(draft.id, new_id(), create=draft)),
        ):
            assert isinstance(turn, OpenTurn)
            open = await store.read(id)
            with pytest.raises(Busy):
                await store.rename(id, None, if_revision=open.revision)
            assert await store.find(name) == open
            await store.commit(turn, exchange("under its name"))
            assert texts(await store.events((await store.find(name)).id)) == [
                "under its name",
                "You said: under its name",
            ]

    async def test_a_name_that_another_has_moves_no_revision(self, store: Store) -> None:
        made, _ = await create(store, "mine"), await create(store, "taken")
        with pytest.raises(AlreadyExists):
            await store.rename(made.id, "taken", if_revision=made.revision)
        assert await store.find("mine") == made

    async def test_a_conversation_takes_no_name_that_another_has(self, store: Store) -> None:
        made, other = await create(store, "mine"), await create(store, "taken")
        draft = NewConversation(id=new_id(), name="draft")
        await store.begin(draft.id, new_id(), create=draft)
        squatter = await create(store, made.id)
        for taken in ("taken", "draft", None):
            with pytest.raises(AlreadyExists):
                await store.rename(made.id, taken)
        for name in ("", "a b", "../up", "x" * 129):
            with pytest.raises(BadName):
                await store.rename(made.id, name)
        assert await store.find("mine") == made
        assert (await store.find("taken"), await store.find(made.id)) == (other, squatter)
        with pytest.raises(NotFound):
            await store.within("other").rename(made.id, "stolen")
        assert (await store.within("other").create(NewConversation(id=new_id(), name="taken"))).name == "taken"

    async def test_the_same_key_makes_one_conversation(self, store: Store) -> None:
        key = IdempotencyKey("create-1", b"digest")
        first = await store.create(NewConversation(id=new_id()), exchange("hello"), key=key)
        again = await store.create(NewConversation(id=new_id()), exchange("hello"), key=key)
        assert again == first
        with pytest.raises(KeyReused):
            await store.create(NewConversation(id=new_id()), key=IdempotencyKey("create-1", b"another"))

    async def test_approvals_change_by_compare_and_set_also_while_a_turn_is_open(self, store: Store) -> None:
        made = await create(store)
        assert await store.approvals(made.id) == "[]"
        turn = await begin(store, made.id)
        assert await store.change_approvals(made.id, '["a"]', if_approvals="[]")
        assert not await store.change_approvals(made.id, '["b"]', if_approvals="[]"), "they are not what was read"
        assert await store.approvals(made.id) == '["a"]'
        done = await store.commit(turn, [says("hello"), answers("hello")], settings='{"b":1}')
        assert done.revision == made.revision + 1, "the turn was not disturbed"
        assert await store.approvals(made.id) == '["a"]', "a commit of settings leaves them as they are"

    async def test_tenants_do_not_see_each_other(self, store: Store) -> None:
        mine = await create(store, "shared-name")
        done = await run(store, mine.id, "secret")
        theirs = store.within("other")
        for attempt in (
            lambda: theirs.read(mine.id),
            lambda: theirs.find("shared-name"),
            lambda: theirs.events(mine.id),
            lambda: theirs.turns(mine.id),
            lambda: theirs.turn(done.turn),
            lambda: theirs.steps(done.turn),
            lambda: theirs.fork(mine.id, fork_of()),
            lambda: theirs.rewind(mine.id, fork_of(), at=done.turn),
            lambda: theirs.begin(mine.id, new_id()),
            lambda: theirs.resume(done.turn),
            lambda: theirs.discard(done.turn),
            lambda: theirs.delete(mine.id),
            lambda: theirs.describe(mine.id, title="mine now"),
            lambda: theirs.approvals(mine.id),
            lambda: theirs.change_approvals(mine.id, "[1]", if_approvals="[]"),
            lambda: theirs.charge(mine.id, new_id(), Usage(calls=1)),
            lambda: theirs.spent(mine.id),
        ):
            with pytest.raises(NotFound):
                await attempt()
        assert (await theirs.conversations()).items == ()
        assert await theirs.usage(mine.id) == Usage()
        twin = await create(theirs, "shared-name")
        with pytest.raises(NotFound):
            await theirs.events(twin.id, at=done.head.position)
        assert texts(await store.events(mine.id)) == ["secret", "You said: secret"]

    async def test_a_tenant_reaches_nothing_through_an_id_or_family_of_another(self, store: Store) -> None:
        mine = await create(store)
        key = IdempotencyKey("fork-1", b"body")
        done = await run(store, mine.id, "secret")
        fork = await store.fork(mine.id, fork_of(), key=key)
        theirs = store.within("other")
        with pytest.raises(NotFound):
            await theirs.create(NewConversation(id=new_id(), family=mine.family))
        twin = await theirs.create(NewConversation(id=mine.id))
        with pytest.raises(NotFound):
            await theirs.events(twin.id, at=done.head.position)
        with pytest.raises(NotFound):
            await theirs.settle(done.turn)
        await theirs.create(NewConversation(id=fork.id))
        await theirs.delete(fork.id)
        assert await store.fork(mine.id, fork_of(), key=key) == fork
        assert (await theirs.verify()).ok

    async def test_a_sub_agent_is_made_once_for_a_call(self, store: Store) -> None:
        parent = await create(store)
        lineage = Lineage("sub_agent", parent.id, None, new_id(), "c1")
        first = await store.create(NewConversation(id=new_id(), family=parent.id, lineage=lineage))
        again = await store.create(NewConversation(id=new_id(), family=parent.id, lineage=lineage))
        assert again == first

    @pytest.mark.parametrize(
        "lineage",
        [
            Lineage("fork", new_id()),
            Lineage("aside", new_id()),
            Lineage("side", new_id()),
            Lineage("side"),
            Lineage("sub_agent", new_id(), None, new_id(), None),
            Lineage("root", new_id()),
            Lineage("sub_agent", new_id(), Position(1 << 40, 1), new_id(), "c1"),
        ],
        ids=[
            "fork",
            "aside without a family",
            "side without a family",
            "side of nobody",
            "no call",
            "a root from somewhere",
            "no such place",
        ],
    )
    async def test_a_lineage_that_says_what_did_not_happen_is_refused(self, store: Store, lineage: Lineage) -> None:
        with pytest.raises(BadArgument, check=BadArgument.bad_lineage.made):
            await store.create(NewConversation(id=new_id(), lineage=lineage))
        assert (await store.conversations()).items == ()

    async def test_a_document_that_is_not_json_is_refused(self, store: Store) -> None:
        made = await create(store)
        with pytest.raises(NotWhole):
            await store.create(NewConversation(id=new_id(), settings="{cut"))
        with pytest.raises(NotWhole):
            await store.fork(made.id, NewFork(id=new_id(), cache=""))
        with pytest.raises(NotWhole):
            await store.begin(made.id, new_id(), input="hello")
        assert len((await store.conversations()).items) == 1
        assert (await store.read(made.id)).status == "idle"

    async def test_closing_a_view_closes_nothing(self, store: Store) -> None:
        async with store.within("other") as view:
            await create(view)
        await create(store)

    async def test_a_note_commits_events_and_settings_together(self, store: Store) -> None:
        made = await create(store)
        done = await store.note(made.id, new_id(), [says("by hand")], settings='{"a":2}', cache='{"key":"new"}')
        after = await store.read(made.id)
        assert (after.revision, after.settings, after.cache) == (1, '{"a":2}', '{"key":"new"}')
        assert after.head == done.head
        assert texts(await store.events(made.id)) == ["by hand"]
