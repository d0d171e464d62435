"""What a model is asked about a branch, and which model."""

from forkpoint import LLM, Condenser, Window
from forkpoint.agent.condense.branch_summary import question, summariser
from forkpoint.events import Event, NewEvent, Position, seal
from forkpoint.testing.samples import answers, calls, returns, says, thinks


def path(*events: NewEvent) -> list[Event]:
    return [Event(Position(1, n), "turn", seal(event, 1), event.body) for n, event in enumerate(events, start=1)]


def test_the_condensers_model_is_asked_if_it_has_one_else_the_agents() -> None:
    own, other = LLM("scripted/own"), LLM("scripted/other")
    assert summariser(None, own) == summariser(Window(), own) == summariser(Condenser(), own) == own
    assert summariser(Condenser(llm=other), own) == other


def test_it_is_shown_what_was_said_and_done_and_no_thoughts() -> None:
    asked = question(path(says("why?"), thinks("hm"), calls("c"), returns("c"), answers("because")), LLM("scripted/a"))
    for words in ("why?", "calls look", "seen", "because"):
        assert words in asked
    assert "hm" not in asked


def test_a_long_branch_is_cut_to_what_the_model_takes() -> None:
    long = path(*(says("word " * 1000) for _ in range(50)))
    assert len(question(long, LLM("local/smollm2", context_tokens=1000))) < 4000
    assert len(question(long, LLM("scripted/a"))) > 200_000
