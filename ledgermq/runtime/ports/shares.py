"""Share out places that all callers use, so that none of them takes it all from the others: the one rule.

one caller     may hold as much as is free. So one alone gets half, two get a third each, and there always is
               room for others
"""

from __future__ import annotations


def is_above_share(own: int, more: int, free: int) -> bool:
    """Return whether one that has `own` may not have so many more: it may have as many as are free."""
    return own + more > free
