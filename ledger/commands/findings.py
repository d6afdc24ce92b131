"""Damage as a value: whatever the store's checks raise becomes a Finding that names the object, and the inspection goes on."""

from __future__ import annotations

from types import TracebackType

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

    def collecting(self, object_key: str) -> _Collecting:
        """A block inside of which damage and missing objects become findings; `object_key` where the error names none."""
        return _Collecting(self, object_key)


class _Collecting:
    def __init__(self, findings: Findings, object_key: str) -> None:
        self._findings = findings
        self._object_key = object_key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not isinstance(error, (StoreError, ObjectMissing)):
            return False
        key = error.object_key or self._object_key
        self._findings.add(key, error.code, error.message.removeprefix(f"{key}: "))
        return True
