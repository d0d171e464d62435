"""What a page says that its reader does."""

import pytest
from tests.console.page import Before, Command, File, NotRun, steps

PAGE = """
<!-- first: git init -->
<!-- file: secret.py
print()
-->
<!-- file: agent.py -->
```python
x = 1
```

```python
not_a_file = 1
```

```console
$ forkpoint run "Why?"   # a comment
Because.

$ forkpoint show \\
    --events
```

<!-- not run: it needs a network -->
```console
$ pip install forkpoint
```
"""


def test_a_page_is_read_as_files_and_commands_in_its_order() -> None:
    assert steps(PAGE) == [
        Before(2, "git init"),
        File("secret.py", "print()\n"),
        File("agent.py", "x = 1\n"),
        Command(16, 'forkpoint run "Why?"   # a comment', ("Because.",), 17),
        Command(19, "forkpoint show \\\n    --events", (), 21),
        NotRun(24, "it needs a network"),
    ]


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("<!-- not run: -->\n```console\n$ true\n```\n", "say why"),
        ("<!-- not run: a reason -->\n", "there is none"),
        ("<!-- not run: a reason -->\n```python\n```\n", "only console blocks"),
        ("```console\ntrue\n```\n", "does not begin with a command"),
    ],
)
def test_a_page_that_hides_a_block_says_why(page: str, fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        steps(page)
