"""No conversation can change another's cache key, and each says whose key it shows and why."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkpoint.errors import BadSetting
from forkpoint.ids import new_id
from forkpoint.llm.model import LLM
from forkpoint.llm.prompt.identity import (
    LONGEST_KEY,
    CacheIdentity,
    CachePolicy,
    CallContext,
    fork_identity,
    own_identity,
    under_manifest,
)
from forkpoint.llm.prompt.manifest import Manifest

many = settings(max_examples=100, deadline=None, database=None)

A, B, C = "a" * 64, "b" * 64, "c" * 64  # hashes of manifests

ids = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def fork(
    source: CacheIdentity,
    source_id: str = "source",
    fork_id: str = "fork",
    policy: CachePolicy = "inherit",
    *,
    manifest: str = A,
    source_manifest: str = A,
) -> CacheIdentity:
    return fork_identity(source, source_id, fork_id, policy, manifest=manifest, source_manifest=source_manifest)


# A root's own.


def test_the_same_id_always_gives_the_same_identity() -> None:
    """The literals are what providers have in their caches: a change of how keys are made empties them all."""
    identity = own_identity("conversation-1")
    assert identity == own_identity("conversation-1")
    assert identity.key == "fp_c6296cad93bd26e15d46feb1a2847f82d3cc7c0d"
    assert identity.session == "c6296cad-93bd-26e1-5d46-feb1a2847f82"


@many
@given(id=ids)
def test_a_key_is_opaque_and_short_enough_for_every_provider(id: str) -> None:
    identity = own_identity(id)
    assert 0 < len(identity.key) <= LONGEST_KEY == 64
    assert re.fullmatch(r"fp_[0-9a-f]{40}", identity.key)
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", identity.session)
    assert identity.inherited_from is None
    assert identity.dropped is None


def test_neither_the_key_nor_the_session_contains_the_id() -> None:
    for id in (new_id(), "customer-4711-secret", "41176d21-79e0-412a-b974-02a87b41dd47"):
        identity = own_identity(id)
        assert id not in identity.to_json(), "a client's text reached the provider"
        assert id.replace("-", "") not in identity.key + identity.session.replace("-", "")


@many
@given(one=ids, other=ids)
def test_two_conversations_never_share_a_key_or_a_session(one: str, other: str) -> None:
    if one != other:
        assert own_identity(one).key != own_identity(other).key
        assert own_identity(one).session != own_identity(other).session


# Forks.


def test_a_fork_has_its_own_key_and_its_source_keeps_its_own() -> None:
    source = own_identity("source")
    before = source.to_json()
    made = fork(source, policy="own")
    assert made == own_identity("fork")
    assert made.key != source.key
    assert made.session != source.session
    assert source.to_json() == before == own_identity("source").to_json()


@many
@given(
    policy=st.sampled_from(["own", "inherit"]),
    manifest=st.sampled_from([A, B]),
    source_manifest=st.sampled_from([A, B]),
)
def test_no_fork_changes_its_source(policy: CachePolicy, manifest: str, source_manifest: str) -> None:
    source = own_identity("source")
    fork(source, policy=policy, manifest=manifest, source_manifest=source_manifest)
    assert source == own_identity("source"), "the source's key was clobbered by a fork"


def test_a_fork_that_inherits_shows_its_source_s_key_and_session_and_says_whose() -> None:
    source = own_identity("source")
    made = fork(source)
    assert (made.key, made.session) == (source.key, source.session)
    assert made.inherited_from == "source"
    assert made.manifest == A
    assert made.dropped is None


def test_a_fork_of_a_fork_that_inherits_still_shows_the_first_one_s_key() -> None:
    root = own_identity("root")
    child = fork(root, "root", "child")
    grandchild = fork(child, "child", "grandchild")
    assert (grandchild.key, grandchild.session) == (root.key, root.session)
    assert grandchild.inherited_from == "child"
    assert grandchild.manifest == A


def test_a_fork_of_a_fork_with_its_own_key_inherits_that_one() -> None:
    child = fork(own_identity("root"), "root", "child", "own")
    assert fork(child, "child", "grandchild").key == own_identity("child").key


def test_a_fork_with_another_manifest_has_its_own_key_and_says_why() -> None:
    made = fork(own_identity("source"), manifest=B)
    assert (made.key, made.session) == (own_identity("fork").key, own_identity("fork").session)
    assert made.inherited_from is None
    assert made.dropped is not None
    assert "source" in made.dropped
    assert A[:12] in made.dropped
    assert B[:12] in made.dropped


def test_a_fork_of_a_conversation_that_dropped_its_key_inherits_the_key_that_it_has_now() -> None:
    dropped = under_manifest(fork(own_identity("root"), "root", "child"), "child", B)
    made = fork(dropped, "child", "grandchild", manifest=B, source_manifest=B)
    assert made.key == own_identity("child").key
    assert made.inherited_from == "child"
    assert made.dropped is None, "the fork dropped nothing itself"


def test_a_fork_never_inherits_a_key_that_its_source_may_no_longer_show() -> None:
    """The source inherited for manifest A and is at B now: whatever it would show at B is what a fork inherits."""
    child = fork(own_identity("root"), "root", "child")
    made = fork(child, "child", "grandchild", manifest=B, source_manifest=B)
    assert under_manifest(child, "child", B).key == own_identity("child").key
    assert made.key == own_identity("child").key, "the root's key is shown for a prompt that the root never had"


# Later on.


def test_an_inherited_key_is_kept_while_the_manifest_stays() -> None:
    made = fork(own_identity("source"))
    assert under_manifest(made, "fork", A) is made


def test_an_inherited_key_is_dropped_when_the_manifest_changes_and_stays_dropped_when_it_comes_back() -> None:
    made = fork(own_identity("source"))
    changed = under_manifest(made, "fork", B)
    assert changed.key == own_identity("fork").key
    assert changed.session == own_identity("fork").session
    assert changed.inherited_from is None
    assert changed.dropped is not None
    assert "source" in changed.dropped
    for later in (A, B, C):
        assert under_manifest(changed, "fork", later) == changed, "a dropped key came back, or its reason changed"


@many
@given(manifests=st.lists(st.sampled_from([A, B, C]), max_size=6))
def test_an_own_identity_never_changes_whatever_the_manifests_are(manifests: list[str]) -> None:
    identity = own_identity("conversation")
    for manifest in manifests:
        identity = under_manifest(identity, "conversation", manifest)
    assert identity == own_identity("conversation")


@many
@given(
    inherits=st.booleans(),
    at_fork=st.sampled_from([A, B]),
    later=st.lists(st.sampled_from([A, B]), max_size=4),
    reopened=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_reopening_a_conversation_at_any_time_changes_nothing(
    inherits: bool, at_fork: str, later: list[str], reopened: list[bool]
) -> None:
    policy: CachePolicy = "inherit" if inherits else "own"
    straight = through = fork(own_identity("source"), policy=policy, manifest=at_fork)
    for manifest, reopen in zip([at_fork, *later], reopened, strict=False):
        if reopen:
            through = CacheIdentity.from_json(through.to_json())
        straight, through = (under_manifest(one, "fork", manifest) for one in (straight, through))
        assert through == straight


@many
@given(
    identity=st.builds(
        CacheIdentity,
        key=st.text("abc", min_size=1, max_size=64),
        session=st.text("abc-"),
        inherited_from=st.none() | st.text("abc"),
        manifest=st.none() | st.text("abc"),
        dropped=st.none() | st.text("abc"),
    )
)
def test_an_identity_comes_back_from_its_document_with_everything(identity: CacheIdentity) -> None:
    assert CacheIdentity.from_json(identity.to_json()) == identity
    assert CacheIdentity.from_json(identity.to_json().encode()) == identity


@pytest.mark.parametrize(
    "document",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"key":"a"}',
        '{"key":1,"session":"s"}',
        '{"key":"","session":"s"}',
        "{",
        "\ud800",
        b"\xff",
        '{"key":"' + "x" * 65 + '","session":"s"}',
        b'{"key":"\xff","session":"s"}',
    ],
    ids=lambda document: ascii(document)[:30],
)
def test_a_document_that_is_no_identity_is_refused_in_our_words(document: str | bytes) -> None:
    with pytest.raises(BadSetting):
        CacheIdentity.from_json(document)


def test_a_key_that_a_provider_would_refuse_cannot_be_made() -> None:
    CacheIdentity("x" * 64, "s")
    for key in ("", "x" * 65):
        with pytest.raises(BadSetting, match="1 to 64"):
            CacheIdentity(key, "s")


# What holds it.


@pytest.mark.parametrize(
    "frozen", [own_identity("c"), CallContext(own_identity("c"))], ids=lambda one: type(one).__name__
)
def test_neither_an_identity_nor_a_call_s_context_can_be_changed(frozen: msgspec.Struct) -> None:
    hash(frozen)
    for field in msgspec.structs.fields(frozen):
        with pytest.raises(AttributeError):
            setattr(frozen, field.name, getattr(frozen, field.name))


@pytest.mark.parametrize("holder", [LLM, Manifest])
def test_nothing_that_conversations_share_has_a_place_for_a_key(holder: Any) -> None:
    """The bug of seed 000: a key on a shared model object, which the newest conversation overwrites."""
    fields = {field.name for field in msgspec.structs.fields(holder)}
    assert not fields & {"prompt_cache_key", "session", "identity", "conversation", "key"}
    kinds = {field.type for field in msgspec.structs.fields(holder)}
    assert CacheIdentity not in kinds


def test_a_salt_is_one_for_each_tenant_and_not_for_each_conversation() -> None:
    one, two = own_identity("one"), own_identity("two")
    assert CallContext(one, "tenant").salt == CallContext(two, "tenant").salt
    assert CallContext(one, "tenant").salt != CallContext(one, "other").salt
    assert CallContext(one).salt != CallContext(one, "tenant").salt
    assert "tenant" not in CallContext(one, "tenant").salt
