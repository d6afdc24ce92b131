"""Check what the rounds of Parquet compaction left in one bundle: plans, pages, snapshots.

They determine which Parquet files count.
"""

from __future__ import annotations

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.fsck.ledgers.ledger_check import LedgerView
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.log.chains.checkpoint import partition_of
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.log.chains.plans import decode_plan
from ledgermq_ledger.log.chains.snapshot import decode_snapshot
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.pages import PageReader, decode_page


async def check_rounds(store: ObjectStore, view: LedgerView, problems: Problems) -> dict[str, fmt.ParquetFile | None]:
    """Return the Parquet files that count: those of the bundle's lists, with their entries.

    The entry is None for files that may be missing: of the open plan, or being removed, below the
    log start or of a removed topic.
    """
    live = await _check_plans(store, view, problems)
    live |= await _check_lists(store, view, problems)
    await _check_snapshot(store, view, problems)
    for part in view.checkpoint.partitions:
        if part.HasField("parked"):
            where = (
                f"topic id {part.topic_id} partition {part.partition} has waited for a repair since plan"
                f" {part.parked.plan}"
            )
            problems.damage(part.parked.object_key, "PARKED", f"{where}: {part.parked.reason}")
        for lost in part.lost:
            where = (
                f"topic id {part.topic_id} partition {part.partition}, offsets {lost.first_offset} to"
                f" {lost.last_offset}"
            )
            problems.note(
                lost.object_key,
                "GIVEN_UP",
                f"{where}: {lost.decided_by} accepted the loss of these records: {lost.reason}",
            )
    return live


async def _check_plans(store: ObjectStore, view: LedgerView, problems: Problems) -> dict[str, fmt.ParquetFile | None]:
    finished = view.checkpoint.finished_plan
    live: dict[str, fmt.ParquetFile | None] = {}
    async for number, info in list_numbered(store, keys.compactions(view.bundle)):
        with problems.collecting(info.key):
            plan = decode_plan(await store.get(info.key), info.key)
            if number > finished + 1:
                problems.damage(
                    info.key,
                    "PLAN_AHEAD",
                    f"plan {finished} is the last finished plan, so only plan {finished + 1} may be open",
                )
            elif number == finished + 1:
                live.update({file.key: None for file in plan.files if file.key})
                _check_slots(view, plan, info.key, problems)
    return live


def _check_slots(view: LedgerView, plan: fmt.CompactionPlan, key: str, problems: Problems) -> None:
    """Check that the slots of an open plan exist as the plan names them."""
    for slot in (*plan.slots, *plan.lagging):
        index = view.indexes.get(slot.slot)
        if slot.slot not in view.present:
            problems.damage(
                keys.segment(view.bundle, slot.slot),
                "MISSING_SEGMENT",
                f"it is missing, but {key} is open and names it",
            )
        elif index is not None and index.put_id != slot.put_id:
            problems.damage(
                keys.segment(view.bundle, slot.slot),
                "OTHER_SEGMENT",
                f"it is of another put than the one that {key}, which is open, names",
            )


async def _check_lists(store: ObjectStore, view: LedgerView, problems: Problems) -> dict[str, fmt.ParquetFile | None]:
    reader = PageReader(store, view.bundle)
    live: dict[str, fmt.ParquetFile | None] = {}
    used: set[int] = set()
    removed = {topic.topic_id for topic in view.checkpoint.removed_topics}
    for counters in view.checkpoint.partitions:
        where = f"topic id {counters.topic_id} partition {counters.partition}"
        with problems.collecting(keys.file_page(view.bundle, counters.newest_page)):
            files = await reader.files_from(counters, 0)
            used.update(await reader.chain(counters))
            for file in files:
                is_leaving = file.last_offset < counters.log_start or counters.topic_id in removed
                live[file.key] = None if is_leaving else file
            is_first = not files or files[0].first_offset == counters.parquet_start
            if not is_first:
                text = (
                    f"{where}: its first file begins at {files[0].first_offset}, but Parquet begins at"
                    f" {counters.parquet_start}"
                )
                problems.damage(keys.file_page(view.bundle, counters.newest_page), "WRONG_LIST", text)
    await _check_pages(store, view, used, problems)
    return live


async def _check_pages(store: ObjectStore, view: LedgerView, used: set[int], problems: Problems) -> None:
    finished = view.checkpoint.finished_plan
    async for number, info in list_numbered(store, keys.file_pages(view.bundle)):
        with problems.collecting(info.key):
            decode_page(await store.get(info.key), info.key)
        if number > finished + 1:
            problems.damage(info.key, "PLAN_AHEAD", f"plan {finished} is the last that is finished")
        elif number <= finished and number not in used:
            text, used_ms = "no partition's file list leads to this page", view.checkpoint.created_ms
            problems.leftover(info.key, "UNREFERENCED", text, put_ms=info.modified_ms, used_ms=used_ms)


async def _check_snapshot(store: ObjectStore, view: LedgerView, problems: Problems) -> None:
    checkpoint = view.checkpoint
    in_force = checkpoint.snapshot_plan
    found = set()
    async for number, info in list_numbered(store, keys.snapshots(view.bundle)):
        found.add(number)
        with problems.collecting(info.key):
            snapshot = decode_snapshot(await store.get(info.key), info.key)
            if number == in_force:
                _check_snapshot_ends(checkpoint, snapshot, info.key, problems)
        if number > checkpoint.finished_plan + 1:
            problems.damage(info.key, "PLAN_AHEAD", f"plan {checkpoint.finished_plan} is the last that is finished")
        elif number <= checkpoint.finished_plan and number != in_force:
            text = f"snapshot {in_force} is in force"
            problems.leftover(info.key, "UNREFERENCED", text, put_ms=info.modified_ms, used_ms=checkpoint.created_ms)
    if in_force and in_force not in found:
        problems.damage(
            keys.snapshot(view.bundle, in_force),
            "OBJECT_MISSING",
            "it is missing, but the newest checkpoint says that it is in force",
        )


def _check_snapshot_ends(checkpoint: fmt.Checkpoint, snapshot: fmt.Snapshot, key: str, problems: Problems) -> None:
    for part in snapshot.partitions:
        where = f"topic id {part.topic_id} partition {part.partition}"
        end = partition_of(checkpoint, part.topic_id, part.partition).parquet_end
        if part.end != end:
            problems.damage(
                key, "WRONG_END", f"{where}: it is clean up to offset {part.end}, but the checkpoint says {end}"
            )
        offsets = [record.offset for record in part.records]
        if offsets != sorted(set(offsets)) or (offsets and offsets[-1] >= part.end):
            problems.damage(key, "BAD_SNAPSHOT", f"{where}: its offsets do not ascend, or reach beyond its end")
        if len({record.key for record in part.records}) != len(part.records):
            problems.damage(key, "BAD_SNAPSHOT", f"{where}: it holds two records of one key")
