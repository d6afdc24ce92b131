"""Did-you-mean hints for errors about unknown names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NAMES_SHOWN = 20
CLOSE = 0.5


def nearest(name: str, known: Iterable[str], close: float = CLOSE) -> str | None:
    """Return the known name that is most similar to this one, ignoring case; None if none is
    similar enough. `close`: from 0, any, to 1, the same.
    """
    spelled = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), spelled, n=1, cutoff=close)
    return spelled[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return ``did you mean 'value'?``. If no name is near, return `otherwise`, or the first known
    names.
    """
    names = list(known)
    if near := nearest(name, names):
        return f"did you mean {near!r}?"
    return otherwise or f"known: {', '.join(names[:NAMES_SHOWN])}"
