"""Run one task of a round: write the Parquet files of a group of neighbouring partitions. It is a
plain function of (task, store), without Spark.

For each file: check whether it exists (its footer says whether it is the plan's) | read each slot
by one range | build | put, fenced. Indexes that the maker of the task has read travel with it. The
permission to put is taken before the read of the newest checkpoint which shows that the plan is
open; when it expires, both are repeated. Another process may write the same files at the same time:
put_if_absent decides, and the loser reads the winner's file.

A missing slot or another put id is an error, never an empty input. A batch that cannot be read has
an outcome: a file without rows that says so, put at the same key, so that all processes that run
the plan agree. The answer to a put is not trusted: the stored footer decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from ledgermq.errors import Unavailable
from ledgermq.runtime.tasks import all_of, end
from ledgermq.sources import Sources
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.plans import fence_of, require_open
from ledgermq_ledger.log.segments.indexes import SegmentIndexes
from ledgermq_ledger.object_store.contract import AlreadyExists, FenceClosed, FencedPuts, ObjectStore, StoreUncertain
from ledgermq_ledger.object_store.settle import pause_before_retry
from ledgermq_ledger.object_store.wrappers.payers import Payer, paid_by
from ledgermq_ledger.parquet.compacting.group_build import build_group
from ledgermq_ledger.parquet.engine import TASK_MEMORY_BYTES
from ledgermq_ledger.parquet.files.columns import FooterNote, empty_file, note_of_file
from ledgermq_ledger.parquet.files.new_file import NewFile
from ledgermq_ledger.parquet.files.stored_file import StoredFile, describe, parse_footer, read_stored_file
from ledgermq_ledger.parquet.files.typed_files import Schemas, TypedFiles

GROUP_FILES_MAX = 64
INDEX_BYTES_MAX = 512 * 1024
LOOKS_AT_ONCE = 6
PUTS_AT_ONCE, PUT_BYTES_MAX = 3, 64 * 1024 * 1024
"""Puts at a time: fewer than the writers of a folder store, which a broker's compaction shares with
its segments.
"""
PUT_ATTEMPTS_MAX = 12


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """A task of a round. Picklable. `plan`: a CompactionPlan reduced to the files of the group and
    the slots that they read. `indexes`: cached ones of these slots, each a SegmentIndex of the
    batches that the group needs.
    """

    store_url: str
    cluster_id: str
    url_life_ms: int
    plan: bytes
    files: int
    source_bytes: int
    indexes: tuple[bytes, ...] = ()
    pending_bytes_max: int = TASK_MEMORY_BYTES // 2
    """Decoded rows that wait for their row groups."""
    schemas: Schemas = field(default_factory=dict)
    """Those of the subjects that its files name, as the plan sees them."""

    @property
    def work(self) -> str:
        """Describe the work; Spark uses it as the name of the job."""
        plan = fmt.CompactionPlan.FromString(self.plan)
        return f"Parquet compaction: bundle {plan.bundle}, plan {plan.number} ({plan.put_id.hex()[:8]})"

    async def run(self, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> TaskOutcome:
        """Run the task by `run_task`; the topics of its files pay for its requests, by what they read of segments."""
        shares: dict[Payer, int] = {}
        for file in fmt.CompactionPlan.FromString(self.plan).files:
            payer = Payer(file.topic_id)
            shares[payer] = shares.get(payer, 0) + file.source_bytes
        with paid_by(shares):
            return await run_task(self, store, sources, run_blocking)


@dataclass(frozen=True, slots=True)
class TaskOutcome:
    """Every file of the task, as it is in the store."""

    files: tuple[StoredFile, ...]


def split_plan(
    plan: fmt.CompactionPlan,
    store_url: str,
    cluster: ClusterSettings,
    parallel: int = 1,
    known: SegmentIndexes | None = None,
    memory_bytes: int = TASK_MEMORY_BYTES,
    schemas: Schemas | None = None,
) -> list[CompactionTask]:
    """Split a plan into tasks of neighbouring partitions: about a quarter of `memory_bytes` each,
    smaller if that keeps `parallel` workers busy. `schemas`: of the subjects that the plan names.

    The rest of the memory is for rows that wait for their row groups (half of it), and for reads
    ahead and puts.
    """
    files = [file for file in plan.files if file.key]
    share = sum(file.source_bytes for file in files) // max(1, parallel)
    bound = min(memory_bytes // 4, max(1, share))
    groups: list[list[fmt.PlannedFile]] = []
    held = 0
    for file in files:
        if not groups or held >= bound or len(groups[-1]) >= GROUP_FILES_MAX:
            groups.append([])
            held = 0
        groups[-1].append(file)
        held += file.source_bytes
    slots = {slot.slot: slot for slot in (*plan.slots, *plan.lagging)}
    entries = _known_entries(plan, slots.values(), known) if known is not None else {}
    tasks = []
    for group in groups:
        part = _cut(plan, group, slots)
        indexes = tuple(_known_indexes(part, entries))
        source_bytes = sum(file.source_bytes for file in group)
        data = part.SerializeToString(deterministic=True)
        subjects = {file.schema.subject for file in group if file.HasField("schema")}
        tasks.append(
            CompactionTask(
                store_url,
                cluster.cluster_id,
                cluster.url_life_ms,
                data,
                len(group),
                source_bytes,
                indexes,
                memory_bytes // 2,
                {name: versions for name, versions in (schemas or {}).items() if name in subjects},
            )
        )
    return tasks


def _cut(
    plan: fmt.CompactionPlan, group: Sequence[fmt.PlannedFile], slots: dict[int, fmt.PlannedSlot]
) -> fmt.CompactionPlan:
    read = sorted({slot for file in group for slot in file.slots})
    return fmt.CompactionPlan(
        bundle=plan.bundle, number=plan.number, put_id=plan.put_id, files=group, slots=[slots[slot] for slot in read]
    )


def _known_entries(
    plan: fmt.CompactionPlan, slots: Iterable[fmt.PlannedSlot], known: SegmentIndexes
) -> dict[PartitionId, dict[int, list[fmt.BatchEntry]]]:
    """Return the entries of slots whose index is cached, by partition and slot."""
    found: dict[PartitionId, dict[int, list[fmt.BatchEntry]]] = {
        PartitionId(file.topic_id, file.partition): {} for file in plan.files if file.key
    }
    for slot in slots:
        index = known.find_put(plan.bundle, slot.slot, slot.put_id)
        for entry in index.index.batches if index is not None else ():
            if (of_partition := found.get(PartitionId(entry.topic_id, entry.partition))) is not None:
                of_partition.setdefault(slot.slot, []).append(entry)
    return found


def _known_indexes(
    part: fmt.CompactionPlan, entries: dict[PartitionId, dict[int, list[fmt.BatchEntry]]]
) -> Iterator[bytes]:
    """Yield as many indexes as may travel with a task, reduced to what it reads of each slot."""
    size_bytes = 0
    partitions = [entries.get(PartitionId(file.topic_id, file.partition), {}) for file in part.files]
    for slot in part.slots:
        if batches := [entry for of_partition in partitions for entry in of_partition.get(slot.slot, ())]:
            data = fmt.SegmentIndex(slot=slot.slot, batches=batches).SerializeToString(deterministic=True)
            size_bytes += len(data)
            if size_bytes > INDEX_BYTES_MAX:
                return
            yield data


async def run_task(
    task: CompactionTask, store: ObjectStore, sources: Sources, run_blocking: RunBlocking
) -> TaskOutcome:
    """Run a task. Raises PlanOvertaken, DataDamaged (naming the object), Unavailable, the store's
    errors.
    """
    return await _Run(task, store, sources, run_blocking).run()


class _Run:
    def __init__(self, task: CompactionTask, store: ObjectStore, sources: Sources, run_blocking: RunBlocking) -> None:
        self.task = task
        self.plan = fmt.CompactionPlan.FromString(task.plan)
        self.store = store
        self.sources = sources
        self.run_blocking = run_blocking
        self.permission: FencedPuts | None = None
        self.typed = TypedFiles(task.schemas)

    async def run(self) -> TaskOutcome:
        looks = (read_stored_file(self.store, file.key, self._note(file)) for file in self.plan.files)
        found = dict(zip((file.key for file in self.plan.files), await all_of(looks, LOOKS_AT_ONCE), strict=True))
        missing = [file for file in self.plan.files if found[file.key] is None]
        if missing:
            await self._take_permission()
            found |= {stored.key: stored for stored in await self._build(missing)}
        return TaskOutcome(tuple(stored for stored in found.values() if stored is not None))

    async def _build(self, files: list[fmt.PlannedFile]) -> list[StoredFile]:
        """Build and put files: a few puts run side by side, while the next files are built."""
        puts: dict[asyncio.Task[StoredFile], int] = {}
        try:
            async with aclosing(
                build_group(
                    self.store,
                    self.plan,
                    files,
                    self.task.indexes,
                    self.run_blocking,
                    self.task.pending_bytes_max,
                    self.typed.of,
                )
            ) as group:
                async for built in group:
                    note = self._note(built.file, built.failed, built.damaged_object)
                    typed = self.typed.fields(built.file)
                    empty = partial(empty_file, note, has_appended=built.file.has_appended, typed=typed)
                    data = await self.run_blocking(partial(built.builder.finish, note) if built.builder else empty)
                    await _wait_for_room(puts, data.size)
                    puts[asyncio.create_task(self._put(built.file.key, data, note))] = data.size
                    await asyncio.sleep(0)  # the put begins now, even if finishing the next file blocks the loop
            return [await put for put in puts]
        finally:
            await end(*puts)

    def _note(self, file: fmt.PlannedFile, failed: str = "", damaged_object: str = "") -> FooterNote:
        return note_of_file(file, self.plan, self.task.cluster_id, failed, damaged_object)

    async def _take_permission(self) -> None:
        """Take the permission, then read the newest checkpoint. In the other order, a process could
        be paused after the read, and sign when the files are long deleted.
        """
        keys = [file.key for file in self.plan.files]
        try:
            permission = await self.store.fenced_puts(fence_of(self.plan), keys, self.task.url_life_ms)
        except FenceClosed:
            await require_open(self.store, self.plan)
            raise
        await require_open(self.store, self.plan)
        self.permission = permission

    async def _put(self, key: str, data: NewFile, note: FooterNote) -> StoredFile:
        for attempt in range(PUT_ATTEMPTS_MAX):
            assert self.permission is not None
            try:
                await self.permission.put_if_absent(key, data.parts)
                return describe(parse_footer(data.ending, key), key, data.size, note)
            except FenceClosed:
                await self._take_permission()
            except AlreadyExists:
                if stored := await read_stored_file(self.store, key, note):
                    return stored
            except StoreUncertain:
                pass
            await pause_before_retry(attempt, self.sources)
        raise Unavailable(f"gave up after {PUT_ATTEMPTS_MAX} attempts: {key} could not be put; retry later")


async def _wait_for_room(puts: dict[asyncio.Task[StoredFile], int], size: int) -> None:
    """Wait until few enough puts are running, with few enough bytes; a larger file goes alone.
    Raises what a put has raised.
    """
    while True:
        for put in puts:
            if put.done():
                put.result()
        living = [put for put in puts if not put.done()]
        if not living or (len(living) < PUTS_AT_ONCE and sum(puts[put] for put in living) + size <= PUT_BYTES_MAX):
            return
        await asyncio.wait(living, return_when=asyncio.FIRST_COMPLETED)
