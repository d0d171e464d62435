"""The first code block of an answer."""

import pytest

from forkpoint.cli.answer.code_block import first_block


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("Like this:\n```python\nprint(1)\n\nprint(2)\n```\nand\n```\nthat\n```", "print(1)\n\nprint(2)"),
        ("~~~\na\n~~~", "a"),
        ("````md\n```\nx\n```\n````", "```\nx\n```"),
        ("```\nnever closed", "never closed"),
        ("```\n```", ""),
        ("  ```\n  a\n    b\n c\n  ```", "a\n  b\nc"),
        ("Use `code` and ```inline``` words.", None),
        ("    ```\n    an indented text\n", None),
        ("```\r\na\r\nb\r\n```\r\n", "a\nb"),
        ("", None),
    ],
)
def test_the_first_fenced_block_is_found(text: str, block: str | None) -> None:
    assert first_block(text) == block
