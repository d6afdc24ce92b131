"""A root for tests of the Spark source: records in Parquet files and in segments, on a local
folder.
"""

from __future__ import annotations

from pathlib import Path

from ledgermq.sources import Sources
from ledgermq_ledger.open_root import root_url
from ledgermq_ledger.root.open import open_store
from tests.worlds.roots import Root

DAY = "2024-01-01"
"""A topic's name that Spark would take for a date."""
ALL = [("t", 0, offset) for offset in range(18)] + [("t", 1, offset) for offset in range(6)]


async def fill(place: Path | str) -> None:
    """At a folder or a root URL. Topic t: two partitions of 18 and 6 records, the first two thirds
    in Parquet. Topic DAY: two records.

    The time of the records of each sixth is its number, in milliseconds.
    """
    async with await open_store(root_url(str(place)), sources=Sources()) as store:
        root = await Root.open(store, Sources(), bundles=3)
        await root.create_topic("t", 2)
        await root.create_topic(DAY, 1, 2)
        for number in range(6):
            values = [b"%d/%d" % (number, i) for i in range(3)]
            await root.produce("t", (0, values), (1, [b"x%d" % number]), timestamp_ms=number)
            if number in (1, 3):
                await root.compact()
        await root.produce(DAY, (0, [b"a", b"b"]))


async def compact(place: Path | str) -> None:
    async with await open_store(root_url(str(place)), sources=Sources()) as store:
        root = await Root.open(store, Sources())
        assert not (await root.compact()).failures
