"""Damage as a value: whatever the store's checks raise becomes a Finding that names the object, and the inspection goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledger.object_store.contract import ObjectMissing
from ledgermq.cli.report import Finding
from ledgermq.errors import StoreError


class Findings:
    """A list that keeps one finding an object and problem."""

    def __init__(self) -> None:
        self.all: list[Finding] = []

    def add(self, object_key: str, code: str, problem: str) -> None:
        finding = Finding(object_key, code, problem)
        if finding not in self.all:
            self.all.append(finding)

    @contextmanager
    def collecting(self, object_key: str) -> Iterator[None]:
        """Damage and missing objects inside of the block become findings; `object_key` where the error names none."""
        try:
            yield
        except (StoreError, ObjectMissing) as error:
            key = error.object_key or object_key
            self.add(key, error.code, error.message.removeprefix(f"{key}: "))
