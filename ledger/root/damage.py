"""Damage as a value, for whoever looks at a whole root and has to go on after the first bad object."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ledger.object_store.contract import ObjectMissing
from ledgermq.errors import StoreError


class CollectingDamage:
    """A block: damage and missing objects inside of it are told to `found(key, code, text)`;
    `object_key` where the error names none.
    """

    def __init__(self, object_key: str, found: Callable[[str, str, str], None]) -> None:
        self._object_key = object_key
        self._found = found

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, (StoreError, ObjectMissing)):
            return False
        key = error.object_key or self._object_key
        self._found(key, error.code, error.message.removeprefix(f"{key}: "))
        return True
