"""List the assignors by name, and choose the one that a group uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from ledgermq_offsets.assignors import consistent_hash, ranges, sticky, uniform
from ledgermq_offsets.assignors.problem import Problem, Target

ASSIGNORS: dict[str, Callable[[Problem], Target]] = {
    "uniform": uniform.assign,
    "range": ranges.assign,
    "sticky": sticky.assign,
    "consistent_hash": consistent_hash.assign,
}
DEFAULT = "uniform"


def chosen(named: Iterable[str]) -> str:
    """Return the assignor that most members name. In a tie, the first one in `ASSIGNORS` wins."""
    votes = Counter(named)
    return max(ASSIGNORS, key=lambda name: votes[name])
