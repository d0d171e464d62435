"""How long drafts, keys and failed tries are kept, as the environment says."""

import pytest

from forkpoint.errors import BadArgument
from forkpoint.store import Retention
from forkpoint.workspace.retention import VARIABLES, retention

DAY = 86_400.0


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)


def test_what_the_environment_says_wins_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert retention() == Retention(drafts=DAY, keys=7 * DAY, tries=30 * DAY, responses=30 * DAY)
    monkeypatch.setenv("FORKPOINT_KEEP_TRIES", " 1.5d ")
    monkeypatch.setenv("FORKPOINT_KEEP_KEYS", "90m")
    assert retention(Retention(drafts=5.0, keys=6.0, tries=7.0)) == Retention(drafts=5.0, keys=5400.0, tries=1.5 * DAY)


@pytest.mark.parametrize("wrong", ["30", "d", "-1d", "1w", "inf", "1e9d", "40000d", "999999999d"])
def test_what_is_not_a_time_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("FORKPOINT_KEEP_DRAFTS", wrong)
    with pytest.raises(BadArgument, match="FORKPOINT_KEEP_DRAFTS"):
        retention()
