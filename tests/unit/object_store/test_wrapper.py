"""A wrapper forwards every operation: a default of the contract that it inherited would switch an
operation off.
"""

from __future__ import annotations

import inspect

from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper


def test_each_operation_of_the_contract_is_forwarded() -> None:
    operations = {name for name, _ in inspect.getmembers(ObjectStore, inspect.isfunction) if not name.startswith("__")}
    assert {"share", "confirm", "put_data", "keep_reserve", "make_durable", "close"} <= operations
    assert operations - set(vars(StoreWrapper)) == set()


def test_each_store_says_how_its_objects_are_shared() -> None:
    assert "share" in ObjectStore.__abstractmethods__
