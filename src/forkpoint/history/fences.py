"""Code fences around a whole answer: many models write JSON between two lines of backticks, whatever they were told."""


def unfenced(text: str) -> str:
    """What stands within the fence, if the whole text is one fenced block; otherwise the text itself.

    White space around the block has no part in it. A text with words before or after the block is not changed.
    """
    first, line_end, rest = text.strip().partition("\n")
    word = first.strip().removeprefix("```")
    if not (first.startswith("```") and line_end and rest.endswith("```")) or not (word.isalnum() or not word):
        return text
    inside = rest[:-3]
    if any(line.lstrip().startswith("```") for line in inside.splitlines()):
        return text
    return inside
