"""One round of Parquet compaction: plan, tasks, commit (docs/design.md, Parquet compaction). Any
process may begin it, any other finish it.

    read or make plan k, its fence opened before it is put | the newest checkpoint has finished
    exactly k−1 | tasks | snapshot | page | checkpoint: k finished

Plain readers see a file as soon as it exists, so everything is decided by the plan before. Each
step may be done twice, by rivals or after a crash, with the same result.

Where the store has no room for a file, or a removed topic is to go, the plan is cut short: its
fence is closed, so the files that are there are all that there will be, and the runner that commits
it leaves the others to later plans. Every runner comes to the same result. On S3 no fence closes at
once, so there a plan stays open until there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ledgermq.errors import StoreFull, Unavailable
from ledgermq.runtime.reread import Rereads
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import newest_checkpoint
from ledgermq_ledger.log.chains.plans import PlanOvertaken, cut_short, fence_of, put_plan, read_plan, require_open
from ledgermq_ledger.log.history import History, read_history
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.object_store.contract import FenceClosed, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.compacting.commit import commit_move
from ledgermq_ledger.parquet.compacting.plan import make_plan, needs_newer_catalog
from ledgermq_ledger.parquet.compacting.snapshot_build import build_snapshot, put_snapshot
from ledgermq_ledger.parquet.compacting.task import CompactionTask, TaskOutcome, split_plan
from ledgermq_ledger.parquet.compaction import Compaction
from ledgermq_ledger.parquet.files.columns import note_of_file
from ledgermq_ledger.parquet.files.stored_file import StoredFile, read_stored_file
from ledgermq_ledger.parquet.files.typed_files import Schemas, is_typed, schemas_of
from ledgermq_ledger.parquet.hand_over import read_frozen
from ledgermq_ledger.parquet.pages import PageReader, build_page, put_page
from ledgermq_ledger.parquet.report import OnProgress, ParkedFile, Progress, RoundReport
from ledgermq_ledger.topics.catalog import Catalog

ATTEMPTS_MAX = 20


async def run_round(
    compaction: Compaction,
    bundle: int,
    catalog: Catalog,
    *,
    everything: bool,
    barrier: bool = False,
    only_internal: bool = False,
) -> RoundReport | None:
    """Finish the open plan of the bundle, or make the next one and finish that; None if nothing is
    due.

    `barrier`: finish a plan even if it is empty. `only_internal`: plan only internal topics, for
    which only the segments that no plan has named are read.

    Raises DataDamaged (naming the object), Unavailable, the store's errors. Finished steps stay,
    and the next run uses them.
    """
    loop = asyncio.get_running_loop()
    rereads = Rereads(
        ATTEMPTS_MAX,
        f"bundle {bundle}: other processes finished its plans during each attempt to read them; retry later",
    )
    while True:
        rereads.begin()
        begun_s = loop.time()
        plan = await _open_plan(
            compaction, bundle, catalog, everything=everything, barrier=barrier, only_internal=only_internal
        )
        if plan is None:
            return None
        try:
            await require_open(compaction.store, plan)
            try:
                stored, fence_lost = await _files(compaction, plan, catalog)
            except StoreFull:
                if compaction.store.fences_close_at_once:
                    await _commit_what_is_there(compaction, plan)
                raise
            if await _commit(compaction, plan, stored, fence_lost=fence_lost):
                return _report(plan, stored, loop.time() - begun_s)
        except (PlanOvertaken, FenceClosed, ObjectMissing):
            # A closed fence or a missing object may mean that another process finished the plan:
            # continue with the next one. Otherwise it is an error.
            if (await newest_checkpoint(compaction.store, bundle)).finished_plan < plan.number:
                raise


async def cut_open_plan_short(store: ObjectStore, bundle: int, topic_id: int) -> None:
    """Refuse further files for the open plan if it names the topic, which is being deleted.

    The process that runs it commits the rest.
    """
    plan = await read_plan(store, bundle, (await newest_checkpoint(store, bundle)).finished_plan + 1)
    if plan is not None and store.fences_close_at_once and any(file.topic_id == topic_id for file in plan.files):
        await cut_short(store, plan)


async def _commit_what_is_there(compaction: Compaction, plan: fmt.CompactionPlan) -> None:
    """Commit the files that exist.

    The trim that follows frees room, and no open plan waits for room that may never come.
    """
    await require_open(compaction.store, plan)
    await cut_short(compaction.store, plan)
    await _commit(compaction, plan, await _files_there(compaction, plan), fence_lost=True)


async def _open_plan(
    compaction: Compaction, bundle: int, catalog: Catalog, *, everything: bool, barrier: bool, only_internal: bool
) -> fmt.CompactionPlan | None:
    """Return the plan after the last finished one: the one that exists, or a new one."""
    store, sources = compaction.store, compaction.sources
    rereads = Rereads(ATTEMPTS_MAX, f"bundle {bundle}: each put of a plan failed; retry later")
    while True:
        rereads.begin()
        number = (await newest_checkpoint(store, bundle)).finished_plan + 1
        plan = await read_plan(store, bundle, number)
        if plan is not None:
            return plan
        history = await read_history(compaction.ledger(bundle), unplanned=only_internal)
        if needs_newer_catalog(history, catalog):
            catalog = await compaction.catalog()
        try:
            await _find_dates(store, history)
        except ObjectMissing:
            continue  # it was trimmed: another process has finished a plan
        make = partial(
            make_plan,
            history,
            everything=everything,
            barrier=barrier,
            only_internal=only_internal,
            now_ms=sources.now_ms(),
            put_id=sources.new_id(),
            takeovers=() if only_internal else await read_frozen(store, history, catalog),
        )
        plan = make(catalog)
        if plan is not None and is_typed(plan):  # a schema is known before a record that names it (design R4)
            plan = make(await compaction.catalog())
        if plan is None or await put_plan(store, plan, sources):
            return plan


async def _find_dates(store: ObjectStore, history: History) -> None:
    """Find the store's dates of the segments that came after the LIST. Raises ObjectMissing."""
    for at, segment in enumerate(history.segments):
        if not segment.stored_ms and segment.index.kind == fmt.DATA:
            info = await store.head(keys.segment(history.bundle, segment.index.slot))
            history.segments[at] = replace(segment, stored_ms=info.modified_ms)


async def _files(compaction: Compaction, plan: fmt.CompactionPlan, catalog: Catalog) -> tuple[list[StoredFile], bool]:
    """Return all files of the plan and False; or the files that exist and True, if its fence was
    lost from outside.
    """
    store = compaction.store
    try:
        return await _run_tasks(compaction, plan, catalog), False
    except FenceClosed:
        await require_open(store, plan)
        if not store.fences_close_at_once or fence_of(plan) in await store.list_fences():
            raise
    # The plan was cut short, or the folder was emptied, or the root was copied without it. No task
    # ever makes a fence, so from now on the store refuses every put of this plan: the files that
    # are there are all that there will be.
    return await _files_there(compaction, plan), True


async def _files_there(compaction: Compaction, plan: fmt.CompactionPlan) -> list[StoredFile]:
    notes = [(file.key, note_of_file(file, plan, compaction.cluster.cluster_id)) for file in plan.files if file.key]
    found = [await read_stored_file(compaction.store, key, note) for key, note in notes]
    return [stored for stored in found if stored is not None]


async def _run_tasks(compaction: Compaction, plan: fmt.CompactionPlan, catalog: Catalog) -> list[StoredFile]:
    store, engine, parallel = compaction.store, compaction.engine, compaction.engine.parallel
    schemas = await _schemas(compaction, plan, catalog)
    tasks = split_plan(plan, store.url, compaction.cluster, parallel, compaction.known, engine.memory_bytes, schemas)
    compaction.sources.random.shuffle(
        tasks
    )  # rivals begin with different files, and find the others' files when they come to them
    tell = _Teller(plan, compaction.on_progress)
    outcomes = await engine.run(store, tasks, tell.done) if tasks else []
    return [stored for outcome in outcomes for stored in outcome.files]


async def _schemas(compaction: Compaction, plan: fmt.CompactionPlan, catalog: Catalog) -> Schemas:
    """Return the schemas that the plan names, as its offset of the catalog shows them (design R5): every runner of
    the plan has the same.
    """
    if not is_typed(plan):
        return {}
    if catalog.offset < plan.metadata_offset:
        catalog = await compaction.catalog()
    if catalog.offset < plan.metadata_offset:
        raise Unavailable(
            f"bundle {plan.bundle}: plan {plan.number} needs the catalog up to offset {plan.metadata_offset}, it ends"
            f" at {catalog.offset}; retry later"
        )
    return schemas_of(catalog.others, plan)


async def _commit(
    compaction: Compaction, plan: fmt.CompactionPlan, stored: Sequence[StoredFile], *, fence_lost: bool
) -> bool:
    """Put snapshot and page, then the checkpoint that names them. Return False if another process
    finished the plan.

    Another process's task may have put a file and not made it durable; closing the fence hides
    that.
    """
    store, sources = compaction.store, compaction.sources
    await store.make_durable([file.key for file in stored])
    snapshot_bytes = 0
    if plan.internal:
        snapshot_bytes = await put_snapshot(store, await build_snapshot(store, plan, compaction.known), sources)
    page = await _page(store, plan, stored)
    if page.partitions:
        await put_page(store, page, sources)
    move = commit_move(plan, stored, fence_lost=fence_lost, snapshot_bytes=snapshot_bytes)
    return await advance_checkpoint(compaction.ledger(plan.bundle), move) is not None


async def _page(store: ObjectStore, plan: fmt.CompactionPlan, stored: Sequence[StoredFile]) -> fmt.FilePage:
    rereads = Rereads(
        ATTEMPTS_MAX, f"bundle {plan.bundle}: its file pages were removed during each attempt to read them; retry later"
    )
    while True:
        rereads.begin()
        try:
            return await build_page(PageReader(store, plan.bundle), await require_open(store, plan), plan, stored)
        except ObjectMissing:
            continue  # the files of an older page were deleted, and so was the page: a newer checkpoint says so


def _report(plan: fmt.CompactionPlan, stored: Sequence[StoredFile], seconds: float) -> RoundReport:
    topics = {file.key: file.topic for file in plan.files}
    done = [file for file in stored if not file.note.failed]
    parked = [
        ParkedFile(topics[file.key], file.note.partition, file.note.damaged_object, file.note.failed)
        for file in stored
        if file.note.failed
    ]
    return RoundReport(
        bundle=plan.bundle,
        plan=plan.number,
        files=len(done),
        records=sum(file.rows for file in done),
        source_bytes=sum(file.source_bytes for file in plan.files),
        stored_bytes=sum(file.size for file in done),
        parked=tuple(parked),
        seconds=seconds,
    )


class _Teller:
    def __init__(self, plan: fmt.CompactionPlan, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        files = [file for file in plan.files if file.key]
        records = sum(file.last_offset + 1 - file.first_offset for file in files)
        self._totals = Progress(
            plan.bundle, plan.number, 0, len(files), 0, records, 0, sum(file.source_bytes for file in files)
        )
        self._files = self._records = self._bytes = 0
        self._report_progress()

    def done(self, task: CompactionTask, outcome: TaskOutcome) -> None:
        self._files += len(outcome.files)
        self._records += sum(file.rows for file in outcome.files)
        self._bytes += task.source_bytes
        self._report_progress()

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            t = self._totals
            self._on_progress(
                Progress(
                    t.bundle,
                    t.plan,
                    self._files,
                    t.files_total,
                    self._records,
                    t.records_total,
                    self._bytes,
                    t.source_bytes_total,
                )
            )
