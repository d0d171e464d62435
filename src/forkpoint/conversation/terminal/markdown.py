"""Markdown as rows of a terminal, and where a text that is still arriving can be cut.

**Nothing that somebody wrote is hidden**: HTML stays the text that it is, a link says where it leads, and so does a
picture. The source must be `clean` already: no character of it may control a terminal.
Tests: tests/conversation/test_markdown.py.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from forkpoint.conversation.terminal.word_flow import TOKENS

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode
    from rich.console import Console
    from rich.text import Text

NARROWEST = 16
"""Columns that a block has at least, however deep it stands in others."""

_LEAVES = {"paragraph_open", "heading_open", "table_open", "fence", "hr"}  # which a blank line ends
_DEEPEST = 40  # levels of blocks within blocks; a text beyond that is shown as it is
_BULLETS = "•◦▪"
_HEADINGS = {"h1": "bold underline", "h2": "bold underline"}
_INLINE = {"strong": "bold", "em": "italic", "s": "strike"}
_CODE = "cyan"
_LINK = "underline"
_THEME = "ansi_dark"  # the sixteen colours of the terminal itself
_RULE = 40  # columns of a horizontal rule


def closed_until(source: str) -> int:
    """How many characters of a text that still arrives are blocks that nothing can change any more.

    All blocks before the last one are closed. Only whole lines are looked at: the rest of a line may make it another.
    """
    whole = source.rfind("\n") + 1
    blocks = [token for token in _parser().parse(source[:whole]) if token.level == 0 and token.map] if whole else []
    if not blocks:
        return 0
    lines = source[:whole].splitlines(keepends=True)
    begin, end = blocks[-1].map or (0, 0)
    if blocks[-1].type in _LEAVES and end < len(lines):  # only blank lines follow it
        return whole
    return sum(map(len, lines[:begin]))


def newest_lines(source: str, most: int) -> str:
    """The source with the newest lines of a block of code alone, if it is a long one that still arrives.

    So showing it takes no longer, however much of it has come.
    """
    first, _, rest = source.partition("\n")
    if not first.startswith("```") or rest.count("\n") <= most:
        return source
    return "\n".join([first, *rest.split("\n")[-most:]])


def markdown_rows(source: str, width: int, console: "Console") -> "list[Text]":
    """The rows in which a text is shown. A row of code, and a word that is too long, may be longer than ``width``."""
    from markdown_it.tree import SyntaxTreeNode

    tokens = _parser().parse(source)
    if any(token.level >= _DEEPEST for token in tokens):
        from rich.text import Text

        return [row for line in source.splitlines() for row in wrapped(Text(line), width)]
    return _View(console).blocks(SyntaxTreeNode(tokens).children, width)


@cache
def _parser() -> "MarkdownIt":
    from markdown_it import MarkdownIt

    # A definition of a link is shown as it stands: the text that it belongs to may be on the screen already.
    return (
        MarkdownIt("commonmark", {"html": False, "maxNesting": 2 * _DEEPEST})
        .enable(["table", "strikethrough"])
        .disable("reference")
    )


class _View:
    """Makes rows of the nodes of a text."""

    def __init__(self, console: "Console") -> None:
        from rich.text import Text

        self._console = console
        self._text = Text

    def blocks(self, nodes: "Iterable[SyntaxTreeNode]", width: int, depth: int = 0) -> "list[Text]":
        """Blocks one below the other, with a blank row between two."""
        rows: list[Text] = []
        for node in nodes:
            if rows:
                rows.append(self._text())
            rows += self._block(node, max(width, NARROWEST), depth)
        return rows

    def _block(self, node: "SyntaxTreeNode", width: int, depth: int) -> "list[Text]":
        match node.type:
            case "heading":
                return self._wrapped(node, width, _HEADINGS.get(node.tag, "bold"))
            case "paragraph":
                return self._wrapped(node, width)
            case "bullet_list" | "ordered_list":
                return self._list(node, width, depth)
            case "blockquote":
                return self._behind(self.blocks(node.children, width - 2, depth), "│ ", "│ ")
            case "fence" | "code_block":
                return self._code(node)
            case "table":
                return self._table(node, width)
            case "hr":
                return [self._text("─" * min(_RULE, width), "dim")]
            case _:
                return [self._text(line) for line in node.content.splitlines()]

    def _list(self, node: "SyntaxTreeNode", width: int, depth: int) -> "list[Text]":
        rows: list[Text] = []
        first = int(str(node.attrs.get("start", 1)))
        last = first + len(node.children) - 1
        for number, item in enumerate(node.children, first):
            sign = f"{_BULLETS[min(depth, len(_BULLETS) - 1)]} "
            if node.type == "ordered_list":
                sign = f"{number}. ".rjust(len(str(last)) + 2)
            inner: list[Text] = []
            is_loose = False
            for child in item.children:
                is_loose = is_loose or (child.type == "paragraph" and not child.hidden)
                if inner and (is_loose or child.type in {"fence", "code_block", "table"}):
                    inner.append(self._text())
                inner += self._block(child, max(width - len(sign), NARROWEST), depth + 1)
            if rows and is_loose:
                rows.append(self._text())
            rows += self._behind(inner or [self._text()], sign, " " * len(sign))
        return rows

    def _behind(self, rows: "list[Text]", first: str, others: str) -> "list[Text]":
        """Rows with a sign before each."""
        style = "dim" if first == others else ""
        made = [self._text.assemble((others if number else first, style), row) for number, row in enumerate(rows)]
        for row in made:
            row.rstrip()
        return made

    def _code(self, node: "SyntaxTreeNode") -> "list[Text]":
        """Code between its fences, dim, so that it can be copied line by line. No row is broken."""
        from rich.syntax import Syntax

        language = node.info.split()[0] if node.info.split() else ""
        code = node.content.removesuffix("\n")
        rows = [self._text("```" + node.info.strip(), "dim")]
        highlighted = Syntax("", language or "text", theme=_THEME, background_color="default").highlight(code)
        if node.content:
            rows += list(highlighted.split("\n", allow_blank=True))[: code.count("\n") + 1]
        return [*rows, self._text("```", "dim")]

    def _table(self, node: "SyntaxTreeNode", width: int) -> "list[Text]":
        from rich import box
        from rich.table import Table

        drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", border_style="dim")
        head, *body = [row for part in node.children for row in part.children]
        for cell in head.children:
            drawn.add_column(self._inline(cell), justify=_side(cell), overflow="fold")
        for row in body:
            drawn.add_row(*map(self._inline, row.children))
        options = self._console.options.update(width=width, height=None)
        rows = []
        for line in self._console.render_lines(drawn, options, pad=False):
            made = self._text.assemble(*((segment.text, segment.style or "") for segment in line))
            made.rstrip()
            rows.append(made)
        return rows

    # Words.

    def _wrapped(self, node: "SyntaxTreeNode", width: int, style: str = "") -> "list[Text]":
        text = self._inline(node, style)
        rows: list[Text] = []
        for line in text.split("\n", allow_blank=True):
            rows += wrapped(line, width)
        return rows

    def _inline(self, node: "SyntaxTreeNode", style: str = "") -> "Text":
        """The words of a block, in one text."""
        text = self._text()
        for inline in node.children:
            for words, styles in _words(inline, (style,) if style else ()):
                text.append(words, " ".join(styles) or None)
        return text


def wrapped(line: "Text", width: int) -> "list[Text]":
    """A line in rows. A word that is longer than a row is not broken: the terminal does that, and it can be copied."""
    line.expand_tabs(4)
    rows = list(line.divide(_breaks(line.plain, width)))
    for row in rows:
        row.rstrip()
    return rows


def _breaks(line: str, width: int) -> list[int]:
    """Where a line is broken into rows."""
    from rich.cells import cell_len

    places, column = [], 0
    for token in TOKENS.finditer(line):
        cells = cell_len(token[0])
        if column and not token[0].isspace() and column + cells > width:
            places.append(token.start())
            column = 0
        column += cells
        if column > width:  # the terminal has broken it
            column %= width
    return places


def _words(node: "SyntaxTreeNode", styles: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Words with their styles."""
    match node.type:
        case "softbreak" | "hardbreak":
            yield "\n", ()
        case "code_inline":
            yield node.content, (*styles, _CODE)
        case "link":
            yield from _link(node, styles)
        case "image":
            yield f"[picture: {node.content}]", (*styles, "italic")
            yield f" ({node.attrs.get('src', '')})", ("dim",)
        case _ if node.children:
            inside = (*styles, _INLINE[node.type]) if node.type in _INLINE else styles
            for child in node.children:
                yield from _words(child, inside)
        case _:
            yield node.content, styles


def _link(node: "SyntaxTreeNode", styles: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The words of a link, and where it leads, unless the words say exactly that."""
    href = str(node.attrs.get("href", ""))
    said = ""
    for child in node.children:
        for words, inside in _words(child, (*styles, _LINK)):
            said += words
            yield words, inside
    if said != href:
        yield f" ({href})", ("dim",)


def _side(cell: "SyntaxTreeNode") -> Any:
    """On which side of its column a cell stands, as rich calls it."""
    _, _, side = str(cell.attrs.get("style", "")).partition("text-align:")
    return side or "left"
