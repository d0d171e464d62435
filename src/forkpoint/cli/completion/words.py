"""The words of a command line that somebody is typing. Tests: tests/cli/test_completion.py."""


def split(line: str) -> list[str]:
    """The words of a line up to the cursor, as a shell takes them. The last one is not finished, and may be empty."""
    words, word, quote, begun = [], "", "", False
    signs = iter(line)
    for sign in signs:
        if quote:
            if sign == quote:
                quote = ""
            elif sign == "\\" and quote == '"':
                word += next(signs, "")
            else:
                word += sign
        elif sign in "'\"":
            quote, begun = sign, True
        elif sign.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + (next(signs, "") if sign == "\\" else sign), True
    return [*words, word]


def set_apart(word: str, breaks: str) -> int:
    """How many characters of an unfinished word bash takes for a word of their own: up to the last ``:`` or ``=``.

    ``breaks`` is bash's ``COMP_WORDBREAKS``.
    """
    return max((word.rfind(sign) for sign in ":=" if sign in breaks), default=-1) + 1
