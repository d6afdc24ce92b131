"""What is added to an error about a name that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NAMES_SHOWN = 20
CLOSE = 0.5


def nearest(name: str, known: Iterable[str], close: float = CLOSE) -> str | None:
    """The known name that is most like this one, case aside; None where none is much like it.
    `close`: from 0, any, to 1, the same.
    """
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=close)
    return spelled[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``did you mean 'value'?``; without a name that is near `otherwise`, or the first names that
    there are.
    """
    names = list(known)
    if near := nearest(name, names):
        return f"did you mean {near!r}?"
    return otherwise or f"there are {', '.join(names[:NAMES_SHOWN])}"
