"""The snapshots of a topic's Iceberg table: read the newest one, and put the next one by compare and set in its catalog
(design Z3). Any number of processes may do so at the same time.

PyIceberg writes manifests and speaks with catalogs. Its own commits are passed by: they try again on another snapshot
than the one that was read, and delete manifests after an answer that may be wrong. Here a commit is made once, and
nothing is deleted because of its outcome: who put a snapshot stands in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table as Stored
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import RemoveSnapshotsUpdate, SetPropertiesUpdate

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.tasks import all_of
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.delta.actions import Add, MetaData, Remove, Txn, decode_path, encode_path
from ledgermq_ledger.delta.statistics import Statistics, encode_statistics
from ledgermq_ledger.delta.table import Table
from ledgermq_ledger.delta.versions import Draft, Listed, Topic, partitions_of
from ledgermq_ledger.iceberg import fields
from ledgermq_ledger.iceberg.catalog import Place
from ledgermq_ledger.iceberg.snapshots import (
    SEEN,
    after_ms_of,
    came_ms,
    chain_of,
    has_put,
    held,
    newest_of_ours,
    seen_text,
    summary_of,
    take_in,
)
from ledgermq_ledger.iceberg.writing import PROPERTIES, Files, commit, data_file, drop_unused, staged
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.tables.formats.contract import FOOTERS_AT_ONCE, Committed

PAUSE_MS = 10_000
"""Between two snapshots at least: each is named in the metadata that every reader loads."""
SNAPSHOTS_HELD = 1000
"""Of one table, about: with a longer `table.keep.ms` snapshots come more rarely."""
DATED_AFTER_MS = 60_000
CHANGED = "another program has changed which files it has; roll that back, or rebuild it"
OPERATIONS = {"WRITE": "append", "CREATE TABLE": "append", "DELETE": "delete", "REPLACE TABLE": "overwrite"}


@dataclass(slots=True)
class IcebergTable(Table):
    """`stored`: None: there is no table yet. `entries`: the data files that the current snapshot names, by URL.
    `changed`: another program has added or removed files since the newest snapshot of LedgerMQ.
    """

    stored: Stored | None = None
    chain: list[Snapshot] = field(default_factory=list)
    entries: dict[str, DataFile] = field(default_factory=dict)
    changed: bool = False


@dataclass(slots=True)
class Fitted(Draft):
    """`columns`: those of the table from the next version on; None: as they are. They never become fewer."""

    columns: Schema | None = None


class IcebergLog:
    """`of`: whose table it is. `run_blocking`: runs what the catalog's client does."""

    def __init__(
        self, store: ObjectStore, of: Topic, place: Place, sources: Sources, run_blocking: RunBlocking
    ) -> None:
        self._store, self._of, self._place, self._sources = store, of, place, sources
        self._run = run_blocking
        self._files = Files()

    async def read(self) -> IcebergTable:
        found: IcebergTable = await self._run(self._read)
        return found

    async def read_held(self, keep_ms: int) -> tuple[Table, Table]:
        now_ms = await self._store.store_time_ms()
        stored = await self._run(self._place.load)
        chain = [] if stored is None else chain_of(stored.metadata)
        count = 0 if stored is None else held(stored.metadata, chain, now_ms, keep_ms)
        lowest, newest = Table(), Table()
        take_in(lowest, chain[max(0, count - 1) :])
        take_in(newest, chain)
        return lowest, newest

    async def read_named(self, keep_ms: int) -> tuple[Table, dict[str, int]]:
        now_ms = await self._store.store_time_ms()
        table = await self.read()
        if table.stored is None:
            return table, {}
        named = dict.fromkeys(table.files, table.version)
        for snapshot in table.chain[1 : held(table.stored.metadata, table.chain, now_ms, keep_ms)]:
            entries = await self._run(partial(self._files.of, snapshot, table.stored.io))
            version = snapshot.sequence_number or 0
            named |= {path: version for url in entries if (path := self._path(url)) not in named}
        return table, named

    async def read_dated(self, keep_ms: int) -> tuple[Table, int, int]:
        now_ms = await self._store.store_time_ms()
        table = await self.read()
        if table.stored is None or not table.chain:
            return table, -1, 0
        lowest = table.chain[held(table.stored.metadata, table.chain, now_ms, keep_ms) - 1]
        came = came_ms(table.stored.metadata, table.chain, 0) or after_ms_of(table.chain[0])
        return table, lowest.sequence_number or 0, came

    def _read(self) -> IcebergTable:
        stored, table = self._place.load(), IcebergTable()
        if stored is None:
            return table
        table.stored, table.chain = stored, chain_of(stored.metadata)
        if not table.chain:
            if stored.properties.get("ledgermq.cluster") != self._of.cluster:
                table.metadata = MetaData(id="", schema_string="")  # it was not made by `create`
            return table
        take_in(table, table.chain)
        with self._place.asking():
            table.entries = self._files.of(table.chain[0], stored.io)
            ours = newest_of_ours(table.chain)
            table.changed = ours is not None and self._files.of(ours, stored.io).keys() != table.entries.keys()
        for url, entry in table.entries.items():
            stats = encode_statistics(Statistics(entry.record_count))
            path = self._path(url)
            table.files[path] = Add(path, entry.file_size_in_bytes, 0, stats=stats)
        self._files.forget_but(table.chain)
        return table

    def _path(self, url: str) -> str:
        """Return the path of a file below the topic's folder, as a draft names it; a foreign file's whole URL."""
        folder = self._place.root + self._of.folder
        return encode_path(url.removeprefix(folder)) if url.startswith(folder) else url

    def _url(self, path: str) -> str:
        return path if "://" in path else self._place.root + self._of.folder + decode_path(path)

    async def fit(self, table: Table, of: Topic, draft: Draft, lists: Mapping[int, Listed]) -> Draft:
        """Compare the field ids of each new file with the table's, for a column with another id is read as NULL."""
        assert isinstance(table, IcebergTable)
        if table.changed and draft.operation != "REPLACE TABLE":
            return Draft(stopped=dict.fromkeys(range(of.partitions), CHANGED))
        new = [of.folder + decode_path(add.path) for add in _new(table, draft)]
        footers = await all_of((read_footer(self._store, key) for key in new), FOOTERS_AT_ONCE)
        columns = fields.FULL if table.stored is None or not table.chain else table.stored.schema()
        try:
            columns = fields.file_columns([footer.schema.to_arrow_schema() for footer in footers], columns)
        except ValueError as error:
            return Draft(stopped=dict.fromkeys(partitions_of(draft), str(error)) | draft.stopped)
        return Fitted(draft.operation, draft.actions, draft.stopped, columns)

    def pause_ms(self, table: Table, now_ms: int, keep_ms: int) -> int:
        assert isinstance(table, IcebergTable)
        last_ms = after_ms_of(table.chain[0]) if table.chain else 0
        return max(0, last_ms + max(PAUSE_MS, keep_ms // SNAPSHOTS_HELD) - now_ms) if last_ms else 0

    async def commit(self, base: Table, draft: Draft, now_ms: int) -> Committed:
        assert isinstance(base, IcebergTable)
        put_id = self._sources.new_id().hex()
        stored = base.stored or await self._run(self._create)
        if base.stored is None and chain_of(stored.metadata):
            return Committed.LOST  # another process has created it, and gone on
        put = await self._run(partial(self._stage, replace(base, stored=stored), draft, now_ms, put_id))
        try:
            await self._run(put)
        except LedgerMQError:
            raise
        except Exception as error:  # the catalog's, or of what is between: the snapshot may have come in spite of it
            return await self._settle(put_id, is_refused=isinstance(error, CommitFailedException))
        return Committed.WON

    def _create(self) -> Stored:
        return self._place.create(fields.CREATED, PROPERTIES | {"ledgermq.cluster": self._of.cluster})

    def _stage(self, base: IcebergTable, draft: Draft, now_ms: int, put_id: str) -> partial[None]:
        """Write the manifests of the next snapshot, and return the call that puts it."""
        assert base.stored is not None
        said = next((action for action in draft.actions if isinstance(action, MetaData)), base.metadata)
        assert said is not None
        txns = base.txns | {action.app_id: action for action in draft.actions if isinstance(action, Txn)}
        summary = summary_of(self._of, said.configuration, txns, put_id, now_ms)
        columns = draft.columns if isinstance(draft, Fitted) and draft.columns is not None else base.stored.schema()
        changes = fields.updates(base.stored.metadata, columns)
        adds = [data_file(self._url(add.path), add, columns) for add in _new(base, draft)]
        gone = [base.entries[self._url(a.path)] for a in draft.actions if isinstance(a, Remove)]
        with self._place.asking():
            changes = staged(base.stored, changes, OPERATIONS[draft.operation], adds, gone, summary)
        return partial(commit, self._place.catalog, base.stored, changes)

    async def _settle(self, put_id: str, *, is_refused: bool) -> Committed:
        """Find out whether a snapshot is the table's, by the ids of the puts in it. Nothing is cleaned up: the answer
        of the catalog may be wrong, and the snapshot may come yet.
        """
        try:
            stored = await self._run(self._place.load)
        except LedgerMQError:
            return Committed.UNKNOWN
        if stored is not None and has_put(chain_of(stored.metadata), put_id):
            return Committed.WON
        return Committed.LOST if is_refused else Committed.UNKNOWN

    async def tidy(self, table: Table, now_ms: int, keep_ms: int, every: int) -> None:
        """Let go of snapshots that no reader may have open, and of the manifests that no other one names."""
        assert isinstance(table, IcebergTable)
        if table.stored is None:
            return
        metadata = table.stored.metadata
        named = {ref.snapshot_id for ref in metadata.refs.values()}
        first = held(metadata, table.chain, now_ms, keep_ms)
        old = [each for each in table.chain[first:] if each.snapshot_id not in named]
        if len(old) >= every:
            await self._run(partial(self._expire, table.stored, old))

    def _expire(self, stored: Stored, old: Sequence[Snapshot]) -> None:
        update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [each.snapshot_id for each in old]})
        with self._place.asking():
            try:
                commit(self._place.catalog, stored, (update,))
            except CommitFailedException:
                return  # another process has put a snapshot meanwhile: the next turn tries again
            drop_unused(stored, old)

    async def date(self) -> None:
        stored = await self._run(self._place.load)
        now_ms = await self._store.store_time_ms()
        chain = [] if stored is None else chain_of(stored.metadata)
        if stored is None or len(chain) < 2 or came_ms(stored.metadata, chain, 0) is not None:
            return
        if now_ms - after_ms_of(chain[0]) >= DATED_AFTER_MS:
            await self._run(partial(self._date, stored, seen_text(chain[0], now_ms)))

    def _date(self, stored: Stored, text: str) -> None:
        with self._place.asking():
            try:
                commit(self._place.catalog, stored, (SetPropertiesUpdate(updates={SEEN: text}),))
            except CommitFailedException:
                return  # another snapshot has come, and dates this one

    async def place(self) -> str:
        stored = await self._run(self._place.load)
        return "" if stored is None else stored.metadata_location


def _new(table: Table, draft: Draft) -> list[Add]:
    """Return the files that the next version adds; a rebuild names also those that stay."""
    return [action for action in draft.actions if isinstance(action, Add) and action.path not in table.files]
