"""Damage as a value, for whoever looks at a whole root and has to go on after the first bad object."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ledger.object_store.contract import ObjectMissing
from ledgermq.errors import StoreError


@contextmanager
def collecting_damage(object_key: str, found: Callable[[str, str, str], None]) -> Iterator[None]:
    """Damage and missing objects inside of the block are told to `found(key, code, text)`; `object_key` where the error names none."""
    try:
        yield
    except (StoreError, ObjectMissing) as error:
        key = error.object_key or object_key
        found(key, error.code, error.message.removeprefix(f"{key}: "))
