"""Collect damage as values, for code that checks a whole root and continues after the first bad
object.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from ledgermq.errors import StoreError
from ledgermq_ledger.object_store.contract import ObjectMissing


class CollectingDamage:
    """A block that reports damage and missing objects inside it to `found(key, code, text)`.

    `object_key`: the key for errors that name none.
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


Collecting = Callable[[str], CollectingDamage]
"""Makes a block that turns damage inside it into findings; its argument names the object."""
