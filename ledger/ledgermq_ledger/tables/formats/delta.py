"""The Delta log of a topic's table in the store: read its newest version, and put the next one (design
Z3). Any number of processes may do so at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ledgermq.runtime.reread import Rereads
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_ledger.delta.actions import CommitInfo, decode_commit, encode_commit
from ledgermq_ledger.delta.checkpoint import decode_log_checkpoint, encode_hint, encode_log_checkpoint
from ledgermq_ledger.delta.names import (
    FOLDER,
    LAST_CHECKPOINT,
    Needed,
    checkpoint_name,
    choose,
    commit_name,
    held,
    removable,
)
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft, Listed, Topic, typed_files, with_columns
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.settle import PutOutcome, settle_put
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.tables.formats.contract import FOOTERS_AT_ONCE, Committed

LOOKS_MAX = 100
ENGINE = "LedgerMQ"

T = TypeVar("T")


class DeltaLog:
    """`folder`: the topic's, which ends with "/"."""

    def __init__(self, store: ObjectStore, folder: str, sources: Sources) -> None:
        self._store, self._sources = store, sources
        self._folder = folder + FOLDER

    async def _list(self) -> Needed:
        names = [info.key.removeprefix(self._folder) async for info in self._store.list(self._folder)]
        return choose(names, self._folder)

    async def read(self) -> Table:
        """Return the newest version by a LIST made now; version -1: there is no table.

        Raises DataDamaged, FormatNotSupported, Unavailable, the store's errors.
        """

        async def look() -> Table:
            return await self._replay(await self._list())

        return await self._insist(look)

    async def read_held(self, keep_ms: int) -> tuple[Table, Table]:
        """Return the lowest version that a reader may have open, because the next one came less than `keep_ms` ago by
        the store's clock, and the newest. Raises as `read`.
        """

        async def look() -> tuple[Table, Table]:
            now_ms = await self._store.store_time_ms()
            stored = await self._stored()
            lowest = await self._replay(held(stored, self._folder, now_ms, keep_ms))
            return lowest, await self._replay(choose(stored, self._folder))

        return await self._insist(look)

    async def read_named(self, keep_ms: int) -> tuple[Table, dict[str, int]]:
        """Return the newest version, and the files that versions name which a reader may have open: by path, with one
        of these versions. `keep_ms`: as in `read_held`. Raises as `read`.
        """

        async def look() -> tuple[Table, dict[str, int]]:
            now_ms = await self._store.store_time_ms()
            stored = await self._stored()
            table, newest = (
                await self._replay(held(stored, self._folder, now_ms, keep_ms)),
                choose(stored, self._folder),
            )
            named = dict.fromkeys(table.files, table.version)
            for version in range(table.version + 1, newest.newest + 1):
                await self._apply(table, version)
                named |= dict.fromkeys(table.files.keys() - named.keys(), version)
            return table, named

        return await self._insist(look)

    async def read_dated(self, keep_ms: int) -> tuple[Table, int, int]:
        """Return the newest version; the number of the lowest that a reader may have open, as in `read_held`; and when
        the newest was stored, in milliseconds by the store's clock. Raises as `read`.
        """

        async def look() -> tuple[Table, int, int]:
            now_ms = await self._store.store_time_ms()
            stored = await self._stored()
            table = await self._replay(choose(stored, self._folder))
            oldest = held(stored, self._folder, now_ms, keep_ms).newest
            return table, oldest, stored.get(commit_name(table.version), 0)

        return await self._insist(look)

    async def _stored(self) -> dict[str, int]:
        """Return when each object of the log was stored, by the store's clock."""
        return {info.key.removeprefix(self._folder): info.modified_ms async for info in self._store.list(self._folder)}

    async def _insist(self, look: Callable[[], Awaitable[T]]) -> T:
        rereads = Rereads(LOOKS_MAX, f"{self._folder}: its versions were removed during each attempt to read them")
        while True:
            rereads.begin()
            try:
                return await look()
            except ObjectMissing:
                continue  # cleaned meanwhile: a log checkpoint is above it

    async def _replay(self, needed: Needed) -> Table:
        table = Table()
        if needed.checkpoint is not None:
            key = self._folder + checkpoint_name(needed.checkpoint)
            table = decode_log_checkpoint(await self._store.get(key), needed.checkpoint, key)
        for version in needed.commits:
            await self._apply(table, version)
        return table

    async def _apply(self, table: Table, version: int) -> None:
        key = self._folder + commit_name(version)
        table.apply(version, decode_commit(await self._store.get(key), key), key)

    async def fit(self, table: Table, of: Topic, draft: Draft, lists: Mapping[int, Listed]) -> Draft:
        """Name the columns of typed values, which footers say, in the version that adds their files (design Z5)."""
        typed = typed_files(draft, of, lists)
        if not typed:
            return draft
        footers = await all_of((read_footer(self._store, key) for key in typed), FOOTERS_AT_ONCE)
        schemas = dict.fromkeys(footer.schema.to_arrow_schema().remove_metadata() for footer in footers)
        return with_columns(draft, table, list(schemas))

    def pause_ms(self, table: Table, now_ms: int, keep_ms: int) -> int:
        return 0

    async def tidy(self, table: Table, now_ms: int, keep_ms: int, every: int) -> None:
        if table.commits >= every:
            await self.put_checkpoint(table, now_ms - keep_ms)
            await self.clean(keep_ms)

    async def date(self) -> None:
        """The store dates every version."""

    async def place(self) -> str:
        return self._folder.removesuffix(FOLDER)

    async def commit(self, base: Table, draft: Draft, now_ms: int) -> Committed:
        """Put the version after `base`, from which it was computed. `now_ms`: the store's clock.

        Raises what `settle_put` raises, DataDamaged, the store's errors of the look after it.
        """
        version = base.version + 1
        put_id = self._sources.new_id().hex()
        info = CommitInfo(now_ms, draft.operation, ENGINE, is_blind_append=draft.operation == "WRITE", txn_id=put_id)
        buffers = encode_commit(draft.actions, info)
        outcome = await settle_put(self._store, self._folder + commit_name(version), buffers, sources=self._sources)
        if outcome is PutOutcome.WON:
            return Committed.WON if await self._counts(version) else Committed.LOST
        return Committed.LOST if outcome is PutOutcome.LOST else Committed.UNKNOWN

    async def _counts(self, version: int) -> bool:
        """Return whether a version that was won is the table's. Old versions are deleted, the lowest first, below a
        log checkpoint, so a number can be free again: not while the one before it is there.
        """
        names = {info.key.removeprefix(self._folder) async for info in self._store.list(self._folder)}
        if version:
            return commit_name(version - 1) in names
        return choose(names, self._folder).checkpoint is None

    async def put_checkpoint(self, table: Table, removed_after_ms: int) -> None:
        """Put the log checkpoint of a version, and the hint to it. Files removed before `removed_after_ms` are left
        out. If another process was first, its checkpoint is as good. A hint that is lost is of no harm.

        Raises what `settle_put` raises.
        """
        key = self._folder + checkpoint_name(table.version)
        put_id = self._sources.new_id().hex()
        data, hint = encode_log_checkpoint(table, removed_after_ms=removed_after_ms, put_id=put_id, key=key)
        outcome = await settle_put(self._store, key, data.parts, sources=self._sources)
        if outcome is PutOutcome.WON:
            await self._store.put(self._folder + LAST_CHECKPOINT, encode_hint(hint))

    async def clean(self, keep_ms: int) -> list[str]:
        """Delete what no version needs that is the newest, or was it less than `keep_ms` ago. Return the keys.

        One after the other, the lowest first: a number that is free has none below it. It may end anywhere. Raises
        DataDamaged, the store's errors.
        """
        now_ms = await self._store.store_time_ms()
        gone = [self._folder + name for name in removable(await self._stored(), self._folder, now_ms, keep_ms)]
        for key in gone:
            await self._store.delete([key])
        return gone
