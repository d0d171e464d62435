"""Messages for an open turn, as its row has them."""

from forkpoint.events import Envelope, Text, UserMessage
from forkpoint.history.steers import Steer, read_steers, steers_among, with_delivered, write_steers

LEFT = Steer("a", 1, UserMessage((Text("left"),)), "ann", key="k1")
RIGHT = Steer("b", 2, UserMessage((Text("right"),)))


def test_what_is_written_is_read_in_the_order_in_which_it_came() -> None:
    assert read_steers(write_steers([LEFT, RIGHT])) == (LEFT, RIGHT)
    assert read_steers(None) == ()


def test_a_message_that_is_delivered_leaves_who_sent_it_and_not_its_words() -> None:
    text = with_delivered(write_steers([LEFT, RIGHT]), {"a"})
    assert text is not None
    assert "left" not in text
    assert read_steers(text) == (Steer("a", 1, None, "ann", delivered=True, key="k1"), RIGHT)
    assert with_delivered(text, {"a"}) == text
    assert with_delivered(text, ()) is text
    assert with_delivered(None, {"a"}) is None


def test_a_copy_in_another_turn_delivers_nothing() -> None:
    own, copy = Envelope("user_message", 0, steer="a"), Envelope("user_message", 0, origin="turn/0", steer="b")
    assert steers_among([own, copy, Envelope("user_message", 0)]) == {"a"}
