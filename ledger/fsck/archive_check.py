"""Check the archive in the cluster's own root: its mark names this cluster, each file is whole.

An archive at another URL (`archive.url`) is not read. Files may lie there that are live, too: a
file is copied before it goes.
"""

from __future__ import annotations

from functools import partial

from ledger import keys
from ledger.blocking import RunBlocking
from ledger.fsck.parquet_rows import check_footer, find_wrong_rows
from ledger.fsck.problem import Problems
from ledger.object_store.contract import ObjectStore
from ledger.parquet.archive_owner import decode_mark
from ledger.parquet.stored_file import read_footer


async def check_archive(
    store: ObjectStore, cluster_id: str, problems: Problems, run_blocking: RunBlocking, *, quick: bool
) -> None:
    async for info in store.list(keys.ARCHIVE):
        key = info.key
        with problems.collecting(key):
            if key == keys.ARCHIVE_OWNER:
                if (owner := decode_mark(await store.get(key))) != cluster_id:
                    problems.damage(key, "FOREIGN_ARCHIVE", f"it says that the archive belongs to cluster {owner}")
            elif (name := keys.parse_archived(key)) is not None:
                footer = await read_footer(store, key)
                if check_footer(footer, key, name, cluster_id, problems) is None or quick:
                    continue
                wrong = await run_blocking(partial(find_wrong_rows, await store.get(key), key, name))
                if wrong is not None:
                    problems.damage(key, "DATA_DAMAGED", wrong)
