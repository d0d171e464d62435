"""Tools that work in the conversation's workspace: a shell, and files to read, write, edit, list and search.

- `shell`: `shell`. `environment`: the folder and the variables that carry over to the next command.
- `files`: `read_file`, `write_file`, `edit_file`. `lines`: lines of a file. `new_file`: a file put in the place of
  another. `replacement`: a text in a file, or the place most like it.
- `searching`: `list_files`, `search_files`. `listing`: which files there are. `globs`: patterns of paths.
  `regex_process`: a regular expression, in a process of its own.
- `paths`: no path leaves the workspace. `output`: what is shown of what a command prints, and where the rest is.
  `failure`: how all of them say that they could not.
"""

from forkpoint.agent.builtin.files import edit_file, read_file, write_file
from forkpoint.agent.builtin.searching import list_files, search_files
from forkpoint.agent.builtin.shell import shell

TOOLS = (edit_file, list_files, read_file, search_files, shell, write_file)
"""All of them."""

__all__ = ["TOOLS", "edit_file", "list_files", "read_file", "search_files", "shell", "write_file"]
