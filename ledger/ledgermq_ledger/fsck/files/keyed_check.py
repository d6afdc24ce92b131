"""Check keyed partitions: a version holds what the log no longer does, its files exist and are
whole, and no key is in it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.files.parquet_rows import read_rows
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keyed.note import KeyedNote
from ledgermq_ledger.keyed.version import KeyedFile, KeyedVersion, newest_version, read_version
from ledgermq_ledger.keys import KeyedName, PartitionId
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectStore
from ledgermq_ledger.parquet.files.stored_file import read_footer
from ledgermq_ledger.topics.catalog import Catalog


@dataclass(slots=True)
class _Listed:
    """The objects in the folder of a partition."""

    versions: list[tuple[KeyedName, ObjectInfo]] = field(default_factory=list)
    files: list[tuple[KeyedName, ObjectInfo]] = field(default_factory=list)


class KeyedCheck:
    def __init__(
        self, store: ObjectStore, cluster: ClusterSettings, problems: Problems, run_blocking: RunBlocking
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._problems = problems
        self._run_blocking = run_blocking

    async def run(
        self, listed: Iterable[ObjectInfo], catalog: Catalog, checkpoints: Sequence[fmt.Checkpoint], *, quick: bool
    ) -> None:
        """Check all keyed partitions. `listed`: objects below `keyed/`, from before the checkpoints
        were read.
        """
        places: dict[PartitionId, _Listed] = {}
        for info in listed:
            if (name := keys.parse_keyed(info.key)) is not None:
                found = places.setdefault(name.place, _Listed())
                (found.files if name.is_file else found.versions).append((name, info))
        counters = {
            PartitionId(part.topic_id, part.partition): part
            for checkpoint in checkpoints
            for part in checkpoint.partitions
            if not part.forgotten
        }
        for place, part in counters.items():
            if part.parquet_start > part.log_start:
                places.setdefault(place, _Listed())
        for place, found in places.items():
            if catalog.is_removed(place.topic_id, catalog.offset):
                newest_ms = max((info.modified_ms for _, info in (*found.versions, *found.files)), default=0)
                text, used_ms = (
                    "the topic of these versions was deleted",
                    max(checkpoint.created_ms for checkpoint in checkpoints),
                )
                self._problems.leftover(
                    keys.keyed_folder(place), "REMOVED_TOPIC", text, put_ms=newest_ms, used_ms=used_ms
                )
                continue
            with self._problems.collecting(keys.keyed_folder(place)):
                await self._check_place(place, found, counters.get(place), quick=quick)

    async def _check_place(
        self, place: PartitionId, listed: _Listed, part: fmt.PartitionCheckpoint | None, *, quick: bool
    ) -> None:
        newest = await newest_version(self._store, place)
        end = newest.version.end if newest is not None else 0
        if part is not None and part.log_start < part.parquet_start and end < part.parquet_start:
            text = (
                f"the newest version ends at {end}, but the log begins at {part.parquet_start}: the records between are"
                " lost"
            )
            self._problems.damage(keys.keyed_folder(place), "KEYED_GAP", text)
        if newest is None:
            self._unreferenced(listed, set(), 0, 0)
            return
        if end > (part.parquet_end if part is not None else 0):
            self._problems.damage(
                newest.version.key, "WRONG_END", f"it ends at offset {end}, which is beyond the end of Parquet"
            )
        named: set[str] = set()
        for name, info in listed.versions:
            with self._problems.collecting(info.key):
                named |= {file.key for file in (await read_version(self._store, place, name.number)).files}
        await self._check_files(newest.version, quick=quick)
        self._unreferenced(
            listed, named | {file.key for file in newest.version.files}, newest.version.number, newest.published_ms
        )

    def _unreferenced(self, listed: _Listed, named: set[str], newest: int, newest_ms: int) -> None:
        for name, info in listed.files:
            if info.key in named:
                continue
            if name.number <= newest:
                self._problems.leftover(
                    info.key, "UNREFERENCED", "no version names it", put_ms=info.modified_ms, used_ms=newest_ms
                )
            else:
                self._problems.note(
                    info.key, "UNPUBLISHED", f"it belongs to a round that has not published version {name.number} yet"
                )

    async def _check_files(self, version: KeyedVersion, *, quick: bool) -> None:
        seen: set[bytes] = set()
        for file in version.files:
            with self._problems.collecting(file.key):
                info = await self._store.head(file.key)
                footer = await read_footer(self._store, file.key)
                note = KeyedNote.decode(footer.metadata)
                if note is None or not self._cluster.wrote(note.cluster):
                    self._problems.damage(
                        file.key, "FOREIGN_FILE", "it is not a file of this keyed partition in this cluster"
                    )
                elif info.size != file.size or (note.rows, note.first, note.last) != (
                    footer.num_rows,
                    file.first,
                    file.last,
                ):
                    self._problems.damage(
                        file.key, "WRONG_LIST", f"its size, rows or offsets differ from those in {version.key}"
                    )
                elif not quick:
                    data = await self._store.get(file.key)
                    problem = await self._run_blocking(partial(_find_wrong_rows, data, file, version, seen))
                    if problem:
                        self._problems.damage(file.key, "DATA_DAMAGED", problem)


def _find_wrong_rows(data: bytes, file: KeyedFile, version: KeyedVersion, seen: set[bytes]) -> str | None:
    """Return what is wrong with the rows of a file, or None. Blocking: reads all of it. `seen`:
    keys of the files before. Raises DataDamaged.
    """
    table = read_rows(data, file.key)
    if isinstance(table, str):
        return table
    offsets = table.column("offset").to_pylist()
    if offsets != sorted(set(offsets)) or not file.first <= offsets[0] <= offsets[-1] <= file.last:
        return "its offsets do not ascend from the first to the last offset in its name"
    if set(table.column("topic").unique().to_pylist()) != {version.topic}:
        return f"it holds records of a topic other than {version.topic}"
    found = [key for key in table.column("key").to_pylist() if key is not None]
    twice = len(found) - len(set(found)) or len(seen & set(found))
    seen |= set(found)
    return f"{twice} keys occur twice in the version" if twice else None
