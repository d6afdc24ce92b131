"""Check the names of all objects: LedgerMQ puts objects with these names."""

from __future__ import annotations

import re

from ledgermq_ledger import keys
from ledgermq_ledger.cuts import names as cut_names
from ledgermq_ledger.delta.names import is_in_a_log
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.merging.names import parse_merged

_LEDGER = re.compile(r"ledgers/([0-9]{4,})/(segments|checkpoints|compactions|files|snapshots)/[0-9]{20}\Z")


async def check_names(store: ObjectStore, bundles: int, problems: Problems) -> int:
    """Check all names, and return the number of objects."""
    count = 0
    async for info in store.list(""):
        count += 1
        _check_name(info.key, bundles, problems)
    return count


def _check_name(key: str, bundles: int, problems: Problems) -> None:
    if any(
        parse(key) is not None for parse in (keys.parse_parquet, keys.parse_archived, keys.parse_keyed, parse_merged)
    ):
        return
    if (
        key in (keys.CLUSTER, keys.RESTORE, keys.ARCHIVE_OWNER)
        or keys.parse_broker(key) is not None
        or keys.parse_sink(key) is not None
    ):
        return
    if keys.original_of(key) is not None or is_in_a_log(key):
        return
    if cut_names.is_held(key) or cut_names.parse_cut(key) is not None:
        return
    if key.startswith(keys.PARQUET):
        _check_parquet_name(key, problems)
    elif _LEDGER.match(key) is None:
        problems.untidy(key, "FOREIGN_OBJECT", "no LedgerMQ process puts an object of this name; it is passed over")
    elif (bundle := keys.parse_ledger(key)) is None or bundle >= bundles:
        problems.damage(key, "FOREIGN_LEDGER", f"the cluster has bundles 0 to {bundles - 1}")


def _check_parquet_name(key: str, problems: Problems) -> None:
    if any(part.startswith(("_", ".")) for part in key.split("/")):
        problems.untidy(
            key, "FOREIGN_OBJECT", "no LedgerMQ process puts an object of this name; readers of Parquet pass it over"
        )
    else:
        problems.damage(
            key,
            "FOREIGN_OBJECT",
            "Spark reads every file here: this one is either counted as records or breaks the query",
        )
