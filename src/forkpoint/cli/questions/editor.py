"""A text in the editor of the user's choice.
Tests: tests/cli/test_approval_question.py, tests/cli/test_chat_commands.py."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path


def edited(text: str, name: str) -> str:
    """What the user makes of a text in $VISUAL or $EDITOR, in a file of this name. Raises OSError with the reason."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or ""
    with tempfile.TemporaryDirectory(prefix="forkpoint-") as folder:  # which nobody else can look into
        file = Path(folder) / name
        file.write_text(text + "\n")
        try:
            subprocess.run([*shlex.split(editor), str(file)], check=True)  # noqa: S603 - the user's own
            return file.read_text()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise OSError(f"The editor {editor} did not work: {error}") from None
