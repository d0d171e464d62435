"""Committed events over HTTP, page by page: a page is bounded, and none goes on from an event that is gone."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from tests.server.support.contract import checked
from tests.server.support.serving import Served, served

from forkpoint.server.api import events as calls

PLACE = "/api/conversations"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[httpx2.Client]:
    with checked(server) as client:
        yield client


@pytest.fixture
def place(client: httpx2.Client) -> str:
    """The address of a conversation that has nothing yet."""
    return f"{PLACE}/{client.post(PLACE).json()['id']}"


def says(client: httpx2.Client, place: str, *messages: str) -> str:
    """Runs a turn. Gives its id."""
    answered = client.post(f"{place}/turns", json={"messages": messages})
    assert answered.status_code == 200, answered.text
    return str(answered.json()["id"])


def pages(client: httpx2.Client, place: str, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages from the first on, each as ``next`` of the one before leads to it."""
    found: list[list[dict[str, Any]]] = []
    after: str | None = "0"
    while after is not None:
        page = client.get(f"{place}/events", params={**query, "after": after}).json()
        assert page["next"] is None or int(page["next"]) > int(after), "it leads back"
        found.append(page["items"])
        after = page["next"]
    return found


# Where a page goes on.


def test_an_event_that_a_rewind_took_off_the_path_is_404_also_when_others_stand_in_its_place(
    client: httpx2.Client, place: str
) -> None:
    says(client, place, "One")
    stays = client.get(place).json()["head"]
    second = says(client, place, "Two")
    events = client.get(f"{place}/events").json()
    gone = [one["id"] for one in events["items"] if one["turn"] == second]
    assert events["head"] == gone[-1]
    for after in (stays, *gone):
        assert client.get(f"{place}/events", params={"after": after}).status_code == 200
    client.post(f"{place}/rewind", json={"before": second})

    def refused() -> None:
        for after in gone:
            answered = client.get(f"{place}/events", params={"after": after})
            assert (answered.status_code, answered.json()["error"]["code"]) == (404, "not_found"), answered.text
            assert after in answered.json()["error"]["message"]

    refused()
    nothing = {"items": [], "next": None, "head": stays}
    assert client.get(f"{place}/events", params={"after": stays}).json() == nothing
    third = says(client, place, "Three")
    refused()
    for after in (stays, stays.partition("-")[2]):
        found = client.get(f"{place}/events", params={"after": after}).json()["items"]
        assert {one["turn"] for one in found} == {third}
        assert len(found) == len(gone), "they stand where those stood"


# How much a page has.


def test_a_page_has_about_8_mb_at_most_and_leads_to_the_next_with_nothing_lost_or_doubled(
    client: httpx2.Client, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert calls.MOST_BYTES == 8 * 1024 * 1024
    says(client, place, *(f"{number} {'x' * 1000}" for number in range(90)))
    whole = client.get(f"{place}/events", params={"limit": 1000}).json()
    assert whole["next"] is None
    count = len(whole["items"])
    monkeypatch.setattr(calls, "MOST_BYTES", 30_000)
    bounded = pages(client, place, limit=1000)
    assert [one for page in bounded for one in page] == whole["items"]
    for page in bounded:
        assert sum(len(httpx2.Response(200, json=one["body"]).content) for one in page) < 35_000
    assert len(bounded) < count / 20, "they are about as full as they may be"
    monkeypatch.setattr(calls, "MOST_BYTES", 1)
    fewest = pages(client, place, limit=1000)
    assert [one for page in fewest for one in page] == whole["items"], "however large, some are told"
    assert {len(page) for page in fewest[:-1]} == {calls.FEW}
    assert {len(page) for page in pages(client, place, limit=5)[:-1]} == {5}, "and never more than was asked for"


def test_a_page_that_is_bounded_has_only_the_kinds_that_were_asked_for(
    client: httpx2.Client, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 3_000)
    for number in range(12):
        says(client, place, str(number), "x" * 500)
    everything = [one for page in pages(client, place) for one in page]
    for kind in ("assistant_message", "user_message", "condensation"):
        found = [one for page in pages(client, place, kind=kind) for one in page]
        assert found == [one for one in everything if one["kind"] == kind]


def test_small_events_before_large_ones_make_no_page_large(
    client: httpx2.Client, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MOST_BYTES", 30_000)
    says(client, place, *["s"] * 20, *["x" * 1000] * 75)
    says(client, place, *["x" * 1000] * 95)
    bounded = pages(client, place, limit=1000)
    assert len(bounded) > 4
    assert max(sum(len(httpx2.Response(200, json=one["body"]).content) for one in page) for page in bounded) < 65_000


def test_a_kind_that_is_nowhere_is_looked_for_in_few_reads(client: httpx2.Client, place: str) -> None:
    def reads() -> float:
        lines = client.get("/metrics").text.splitlines()
        (count,) = [one for one in lines if one.startswith('forkpoint_store_seconds_count{operation="events"}')]
        return float(count.split()[-1])

    says(client, place, *["s"] * 95)
    client.get(f"{place}/events")
    before = reads()
    assert client.get(f"{place}/events", params={"kind": "condensation", "limit": 1000}).json()["items"] == []
    assert reads() - before < 20
