"""Digests: no byte of history can change unseen, and erasing a payload leaves the chain whole."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from forkpoint.history.digests import SALT_BYTES, Link, chain_digest, flaw, forge, payload_digest, root_digest

quick = settings(max_examples=60, deadline=None, database=None)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
chains = st.lists(st.tuples(texts, texts), min_size=1, max_size=6)
TURN = b"t" * 16
ROOT = root_digest(b"family")


def forged(contents: list[tuple[str, str]], root: bytes = ROOT) -> list[Link]:
    """A chain of events, each an envelope and a payload."""
    links: list[Link] = []
    for envelope, payload in contents:
        links.append(forge(links[-1].chain_digest if links else root, TURN, envelope, payload))
    return links


def flaws(links: list[Link], root: bytes = ROOT) -> list[str]:
    """What verifying a chain finds, as verify does: each link against the digest of the one before."""
    found = []
    previous = root
    for link in links:
        if what := flaw(previous, link):
            found.append(what)
        previous = link.chain_digest
    return found


def flipped(raw: bytes, bit: int) -> bytes:
    """The same bytes with one bit changed."""
    place, mask = bit // 8 % len(raw), 1 << bit % 8
    return raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :]


@quick
@given(contents=chains)
def test_a_chain_that_nobody_touched_has_no_flaws(contents: list[tuple[str, str]]) -> None:
    assert flaws(forged(contents)) == []


@quick
@given(contents=chains, data=st.data(), bit=st.integers(0, 10_000))
def test_any_bit_flipped_in_a_digest_or_a_salt_is_found(
    contents: list[tuple[str, str]], data: st.DataObject, bit: int
) -> None:
    links = forged(contents)
    place = data.draw(st.integers(0, len(links) - 1))
    field = data.draw(st.sampled_from(["salt", "payload_digest", "chain_digest"]))
    changed = {field: flipped(getattr(links[place], field), bit)}
    links[place] = replace(links[place], **changed)
    assert flaws(links), f"a flipped bit in the {field} of event {place} was not found"


@quick
@given(contents=chains, data=st.data(), field=st.sampled_from(["envelope", "payload"]), other=texts)
def test_any_changed_envelope_or_payload_is_found(
    contents: list[tuple[str, str]], data: st.DataObject, field: str, other: str
) -> None:
    links = forged(contents)
    place = data.draw(st.integers(0, len(links) - 1))
    was: str = getattr(links[place], field)
    cut = data.draw(st.integers(0, len(was)))
    for changed in (other, was + "x", was[:cut] + other + was[cut:], was[:cut]):
        if changed != was:
            links[place] = replace(links[place], **{field: changed})
            assert flaws(links), f"{field} {changed!r} was taken for {was!r}"


@quick
@given(contents=chains, data=st.data())
def test_events_that_change_places_are_found(contents: list[tuple[str, str]], data: st.DataObject) -> None:
    links = forged(contents)
    shuffled = data.draw(st.permutations(links))
    assert bool(flaws(shuffled)) == (shuffled != links)


@quick
@given(contents=chains, data=st.data())
def test_an_event_that_is_gone_is_found_unless_it_was_the_last(
    contents: list[tuple[str, str]], data: st.DataObject
) -> None:
    links = forged(contents)
    place = data.draw(st.integers(0, len(links) - 1))
    rest = links[:place] + links[place + 1 :]
    assert bool(flaws(rest)) == (place < len(links) - 1)


@quick
@given(contents=chains, data=st.data())
def test_an_event_that_was_slipped_in_is_found(contents: list[tuple[str, str]], data: st.DataObject) -> None:
    links = forged(contents)
    place = data.draw(st.integers(0, len(links) - 1))
    before = links[place - 1].chain_digest if place else ROOT
    assert flaws([*links[:place], forge(before, TURN, "slipped", "in"), *links[place:]])


@quick
@given(contents=chains, data=st.data())
def test_rewriting_an_event_shows_at_the_next_one_or_at_the_head(
    contents: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Whoever rewrites an event with matching digests must rewrite all that follow, the head's digest too."""
    links = forged(contents)
    place = data.draw(st.integers(0, len(links) - 1))
    head = links[-1].chain_digest
    before = links[place - 1].chain_digest if place else ROOT
    links[place] = forge(before, TURN, links[place].envelope, "rewritten")
    assert flaws(links) or links[-1].chain_digest != head


@quick
@given(contents=chains, erased=st.sets(st.integers(0, 5)))
def test_erasing_payloads_keeps_the_chain_verifiable(contents: list[tuple[str, str]], erased: set[int]) -> None:
    links = [
        replace(link, payload=None, salt=None) if place in erased else link
        for place, link in enumerate(forged(contents))
    ]
    assert flaws(links) == []


@quick
@given(contents=chains, data=st.data())
def test_an_erased_event_still_vouches_for_its_envelope_and_its_place(
    contents: list[tuple[str, str]], data: st.DataObject
) -> None:
    links = [replace(link, payload=None, salt=None) for link in forged(contents)]
    place = data.draw(st.integers(0, len(links) - 1))
    links[place] = replace(links[place], envelope=links[place].envelope + "x")
    assert flaws(links) == ["its envelope, its turn or its place in the chain was changed"]


def test_a_payload_put_in_place_of_an_erased_one_is_found() -> None:
    (link,) = forged([("envelope", "payload")])
    for salt in (None, b"", bytes(SALT_BYTES)):
        assert flaw(ROOT, replace(link, payload="another", salt=salt)) == "its payload was changed"
    assert flaw(ROOT, replace(link, salt=None)) == "its payload was changed", "a salt was lost, its payload was not"


@pytest.mark.parametrize("moved", [1, 7, -1], ids=["one byte", "seven bytes", "one byte the other way"])
def test_bytes_that_move_between_salt_and_payload_are_found(moved: int) -> None:
    """Salt and payload are hashed one after the other, so only the salt's length keeps them apart."""
    link = Link(TURN, "envelope", "1234567", b"s" * SALT_BYTES, payload_digest(b"s" * SALT_BYTES, "1234567"), b"")
    link = replace(link, chain_digest=chain_digest(ROOT, TURN, link.envelope, link.payload_digest))
    both = b"s" * SALT_BYTES + b"1234567"
    salt, payload = both[: SALT_BYTES + moved], both[SALT_BYTES + moved :].decode()
    assert flaw(ROOT, link) is None
    found = flaw(ROOT, replace(link, salt=salt, payload=payload))
    assert found, f"the payload became {payload!r} and still verifies, with {len(salt)} bytes of salt"


@quick
@given(a=st.binary(max_size=20), b=st.binary(max_size=20), contents=chains)
def test_no_family_s_history_passes_for_another_s(a: bytes, b: bytes, contents: list[tuple[str, str]]) -> None:
    assert (root_digest(a) == root_digest(b)) == (a == b)
    assert bool(flaws(forged(contents, root_digest(a)), root_digest(b))) == (a != b)


def test_equal_payloads_have_different_digests_so_that_an_erased_one_cannot_be_guessed() -> None:
    one, two = forge(ROOT, TURN, "envelope", "yes"), forge(ROOT, TURN, "envelope", "yes")
    assert one.payload_digest != two.payload_digest
    assert one.salt is not None
    assert len(one.salt) == SALT_BYTES
    assert one.payload_digest != payload_digest(b"", "yes")


@quick
@given(envelope=texts, payload=texts)
def test_a_digest_depends_on_the_bytes_and_on_nothing_else(envelope: str, payload: str) -> None:
    link = forge(ROOT, TURN, envelope, payload)
    assert link.salt is not None
    assert payload_digest(link.salt, payload) == link.payload_digest
    assert chain_digest(ROOT, TURN, envelope, link.payload_digest) == link.chain_digest


def test_an_event_that_is_said_to_be_of_another_turn_is_found() -> None:
    link = forge(ROOT, TURN, "envelope", "payload")
    assert flaw(ROOT, link) is None
    assert flaw(ROOT, replace(link, turn=b"u" * 16))
