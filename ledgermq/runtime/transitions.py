"""State machines by table: return the next state of a (state, event) pair, or raise an error.

A table lists every pair that may happen. A pair that it does not list is a bug of this program, and
raises at once, at the place of the bug.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IllegalTransition(AssertionError):
    """An event arrived in a state that does not allow it: a bug, never the user's fault."""


def next_state(table: Mapping[tuple[S, E], S], state: S, event: E, name: object) -> S:
    """Return the next state. `name`: the object that is in the state, for the error's text."""
    following = table.get((state, event))
    if following is None:
        raise IllegalTransition(f"{name}: event {event.name} is not allowed in state {state.name}")
    return following
