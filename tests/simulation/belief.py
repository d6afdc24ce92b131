"""What is surely in force of something that calls change: from the answer to a change until the next change begins.

A record in the store that says otherwise, such as that of an earlier attempt whose outcome is unknown, makes it
unknown again.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Belief(Generic[T]):
    """`value`: None while it is not known. `wanted`: by the last change that began."""

    def __init__(self, value: T | None, wanted: T) -> None:
        self.value = value
        self.wanted = wanted
        self.doubts = 0
        """How often the value became unknown."""
        self._contradicted = False

    def begin(self, wanted: T) -> None:
        """A change begins."""
        if self.value != wanted:
            self._doubt()
        self.wanted, self._contradicted = wanted, False

    def answered(self) -> None:
        """The change that began last was answered."""
        if not self._contradicted:
            self.value = self.wanted

    def stored(self, found: T) -> None:
        """A record that says this was put into the store."""
        if self.value != found:
            self._doubt()
        self._contradicted = self._contradicted or found != self.wanted

    def _doubt(self) -> None:
        self.value = None
        self.doubts += 1
