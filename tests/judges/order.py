"""Order: what one client did later stands later."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any, NamedTuple


class Step(NamedTuple):
    """`who`: whose steps have an order. `place`: compared with the place of the step before."""

    who: Hashable
    place: Any
    what: str


def backwards(steps: Iterable[Step]) -> Iterator[tuple[Step, Step]]:
    """Yield each step that stands before the one that was made before it, and that one."""
    last: dict[Hashable, Step] = {}
    for step in steps:
        before = last.get(step.who, step)
        if step.place < before.place:
            yield step, before
        last[step.who] = step
