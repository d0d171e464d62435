"""The keyboard of a user at a terminal: one key without Enter, a line that begins with a text, or yes or no.
Tests: tests/cli/test_approval_question.py, tests/cli/test_trust.py."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def read_key(question: str) -> str:
    """Asks, and returns the key that is pressed: its character, or a sequence such as an arrow's. "" at Ctrl-C.

    What was typed before the question appeared is thrown away: it was meant for something else. Where a terminal cannot
    be read by key, it is a line.
    """
    try:
        import termios
        import tty
    except ImportError:  # not on this system
        return _line(question)
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal, termios.TCSAFLUSH)
        print(question, end="", flush=True)
        pressed = os.read(terminal, 64).decode(errors="replace")
    except KeyboardInterrupt:
        pressed = ""
    finally:
        termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
    print(pressed if pressed.isprintable() else "", flush=True)
    return pressed


@contextmanager
def by_key(terminal: int) -> Iterator[bool]:
    """Lets a terminal be read key by key, without showing what is pressed. Ctrl-C works as ever.

    Gives whether that is possible; where it is not, nothing has changed.
    """
    try:
        import termios
        import tty

        before = termios.tcgetattr(terminal)
    except (ImportError, OSError, ValueError):  # not on this system, or not a terminal
        yield False
        return
    except termios.error:
        yield False
        return
    try:
        tty.setcbreak(terminal, termios.TCSADRAIN)
        yield True
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def read_keys(terminal: int) -> str:
    """The next key that is pressed in `by_key`: its character, or a sequence such as an arrow's. "" at the end."""
    return os.read(terminal, 64).decode(errors="replace")


def forget_typed() -> None:
    """Throws away what was typed before a question appears: it was meant for something else."""
    try:
        import termios
    except ImportError:  # not on this system
        return
    with suppress(termios.error, ValueError):  # it is not a terminal
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def read_line(question: str, text: str = "") -> str | None:
    """Asks for a line, which begins with ``text`` for the user to change. None at Ctrl-C or at the end of the input."""
    with beginning_with(text):
        try:
            return input(question)
        except (EOFError, KeyboardInterrupt):
            print()
            return None


def says_yes(question: str, *, show: Callable[[str], None] = lambda _: None) -> bool:
    """Asks until the user says yes or no. The end of the input is no. The question is on standard error.

    ``show`` prints what the question is about. It is called with the question, each time before that is asked.
    """
    forget_typed()
    asked = f"{question} [y/n] "
    while True:
        show(asked)
        print(asked, end="", file=sys.stderr, flush=True)
        said = sys.stdin.readline()
        if not said:
            print(file=sys.stderr)
            return False
        if (answer := said.strip().lower()) in ("y", "yes", "n", "no"):
            return answer.startswith("y")


@contextmanager
def beginning_with(text: str, *, remember: bool = False) -> Iterator[None]:
    """Lets the next line begin with a text. Unless ``remember``, it is kept out of the history of lines."""
    try:
        import readline
    except ImportError:
        if text:
            print(text)
        yield
        return
    readline.set_startup_hook(lambda: readline.insert_text(text))
    readline.set_auto_history(remember)
    try:
        yield
    finally:
        readline.set_startup_hook(None)
        readline.set_auto_history(True)


def _line(question: str) -> str:
    try:
        return input(question).strip()
    except (EOFError, KeyboardInterrupt):
        print()
        return ""
