"""``forkpoint completion``: the script that makes a shell complete command lines.
Tests: tests/cli/test_completion.py."""

from pathlib import Path
from typing import Annotated, Literal

from forkpoint.cli import completion as package
from forkpoint.cli.options import argument

_SCRIPTS = Path(package.__file__).with_name("scripts")


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], argument("SHELL", "bash, zsh or fish.")]) -> None:
    """Print what makes the Tab key complete command lines.

    It completes commands, options, names of conversations, models, files, and the values that an option takes. zsh and
    fish show what each of them is.

    Write the script where your shell looks for such scripts, once, and begin a new shell. With bash that needs the
    package bash-completion. For zsh the folder must be in fpath before compinit runs: fpath=(~/.zfunc $fpath).

    \b
    Examples:
      forkpoint completion bash > ~/.local/share/bash-completion/completions/forkpoint
      forkpoint completion zsh > ~/.zfunc/_forkpoint
      forkpoint completion fish > ~/.config/fish/completions/forkpoint.fish

    \b
    Or for this shell alone:
      eval "$(forkpoint completion bash)"
    """
    print((_SCRIPTS / f"forkpoint.{shell}").read_text(encoding="utf-8"), end="")
