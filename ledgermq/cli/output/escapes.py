"""Escape characters that control a terminal, and read the escapes that users write in options."""

from __future__ import annotations

import re

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "e": "\x1b", "\\": "\\"}


def escaped(text: str, *, json: bool = False) -> str:
    r"""Return the text with unprintable characters escaped, as \x1b; with `json` as \u001b.

    Names, keys and values may hold any characters, also control sequences that would move a terminal's cursor.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _json(c) if json else c.encode("unicode_escape").decode() for c in text)


def _json(char: str) -> str:
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def unescaped(text: str) -> bytes:
    r"""Return what a user means by \n, \t, \r, \0, \a, \e, \\ and \xHH; other text as it is."""

    def meant(found: re.Match[str]) -> str:
        if found[1].startswith("x"):
            return chr(0xDC00 + code) if (code := int(found[1][1:], 16)) >= 0x80 else chr(code)  # that byte
        return _ESCAPES[found[1]]

    return re.sub(r"\\(x[0-9a-fA-F]{2}|[ntr0ae\\])", meant, text).encode(errors="surrogateescape")
