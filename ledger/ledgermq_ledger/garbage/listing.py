"""List a ledger's folders, and read what its plans and newest checkpoint refer to, for the other
modules of this package. Reads only.

Invariant: LIST first, then read the plans, then the newest checkpoint and its pages. If a
plan was about to name an object when we listed, our later read of the plans shows it. An object that
is listed and not named then is never needed again: plans stay finished, and trim slots never go back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from ledgermq.errors import DataDamaged, LedgerMQError
from ledgermq.runtime.reread import Rereads
from ledgermq.runtime.tasks import all_of
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import BUNDLES_AT_ONCE
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.gate import Gate
from ledgermq_ledger.log.chains.checkpoint import genesis, newest_checkpoint
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.log.chains.plans import read_plan
from ledgermq_ledger.object_store.contract import ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.files.stored_file import list_files
from ledgermq_ledger.parquet.pages import PageReader

ATTEMPTS_MAX = 10

Numbered = dict[int, ObjectInfo]


@dataclass(frozen=True, slots=True)
class Plan:
    """A compaction plan: the slots that it names, and the Parquet files that it puts."""

    number: int
    slots: tuple[int, ...]
    files: tuple[str, ...]


@dataclass(slots=True)
class Listing:
    """The listing of one bundle. `read`: plans that were read, ascending.

    `files`, `pages_in_use`: what the newest checkpoint and the open plan refer to.
    """

    bundle: int
    segments: Numbered = field(default_factory=dict)
    plans: Numbered = field(default_factory=dict)
    checkpoints: Numbered = field(default_factory=dict)
    pages: Numbered = field(default_factory=dict)
    snapshots: Numbered = field(default_factory=dict)
    read: list[Plan] = field(default_factory=list)
    checkpoint: fmt.Checkpoint = field(default_factory=fmt.Checkpoint)
    files: set[str] = field(default_factory=set)
    pages_in_use: set[int] = field(default_factory=set)
    gate: Gate = field(default_factory=Gate)
    """Of what `checkpoint` lets go."""
    unreadable: LedgerMQError | None = None
    """Why it is unknown which files and pages are referred to; then all of them count as referred
    to.
    """

    @classmethod
    async def take(cls, store: ObjectStore, bundle: int) -> Self:
        """List all of it. Raises DataDamaged if a plan or the newest checkpoint is damaged, the
        store's errors.
        """
        rereads = Rereads(ATTEMPTS_MAX, f"bundle {bundle}: it kept changing while garbage was listed; retry later")
        while True:
            rereads.begin()
            found = cls(bundle, checkpoint=genesis(bundle))
            found.segments = await _list(store, keys.segments(bundle))
            found.checkpoints = await _list(store, keys.checkpoints(bundle))
            found.pages = await _list(store, keys.file_pages(bundle))
            found.snapshots = await _list(store, keys.snapshots(bundle))
            found.plans = await _list(store, keys.compactions(bundle))
            found.read = [plan for number in found.plans if (plan := await _read(store, bundle, number)) is not None]
            found.checkpoint = await newest_checkpoint(store, bundle)
            found.gate = await Gate.of(store, found.checkpoint)
            try:
                await found._follow_pages(store)
            except ObjectMissing as error:
                if (await newest_checkpoint(store, bundle, found.checkpoint)).number != found.checkpoint.number:
                    continue  # the page was replaced meanwhile
                text = f"{error.object_key}: it is missing, but the newest checkpoint needs it"
                found.unreadable = DataDamaged(text, object_key=error.object_key)
            except LedgerMQError as error:
                found.unreadable = error
            return found

    @classmethod
    async def of_finished_plans(cls, store: ObjectStore, bundle: int) -> Self:
        """List finished plans that may still name a segment below the trim slot, and these
        segments: two LISTs, and one GET for each plan not deleted yet.
        """
        found = cls(bundle, checkpoint=genesis(bundle))
        found.plans = await _list(store, keys.compactions(bundle))
        if not found.plans:
            return found
        found.checkpoint = await newest_checkpoint(store, bundle)
        found.gate = await Gate.of(store, found.checkpoint)
        trim_slot = found.checkpoint.trim_slot
        async for slot, info in list_numbered(store, keys.segments(bundle)):
            if slot >= trim_slot:
                break
            found.segments[slot] = info
        numbers = [number for number in found.plans if number <= found.checkpoint.finished_plan]
        for at, number in enumerate(numbers):
            plan = await _read(store, bundle, number)
            if plan is None:
                continue
            found.read.append(plan)
            if plan.slots and min(plan.slots) >= trim_slot:  # the plans after it name later slots, or none
                await found._read_plans_without_slots(store, numbers[at + 1 :])
                break
        return found

    async def _read_plans_without_slots(self, store: ObjectStore, numbers: list[int]) -> None:
        """Read the newest plans. A round that the store had no room for leaves one each time, and
        they must not use up the room.
        """
        for number in reversed(numbers):
            plan = await _read(store, self.bundle, number)
            if plan is not None:
                self.read.append(plan)
                if plan.slots:
                    return

    @classmethod
    async def of_checkpoints(cls, store: ObjectStore, bundle: int) -> Self:
        """List the newest checkpoint, those before it, and the snapshots; the rest stays empty."""
        found = cls(bundle, checkpoint=await newest_checkpoint(store, bundle))
        found.gate = await Gate.of(store, found.checkpoint)
        found.checkpoints = await _list(store, keys.checkpoints(bundle))
        found.snapshots = await _list(store, keys.snapshots(bundle))
        return found

    async def _follow_pages(self, store: ObjectStore) -> None:
        reader = PageReader(store, self.bundle)
        for part in self.checkpoint.partitions:
            if part.newest_page:
                self.pages_in_use.update(await reader.chain(part))
                self.files.update(file.key for file in await reader.files_from(part, 0))
        for plan in self.read:
            if plan.number > self.checkpoint.finished_plan:
                self.files.update(plan.files)


@dataclass(slots=True)
class RootListing:
    """`parquet`: every object below `parquet/` and `hidden/`, by its key. `failures`: bundles of which it is
    unknown what they refer to: all of theirs counts as referred to. Of some of them there is a
    listing, too. `parquet_failure`: why `parquet` is not complete; the bundles are listed all the same.
    """

    parquet: dict[str, ObjectInfo] = field(default_factory=dict)
    bundles: dict[int, Listing] = field(default_factory=dict)
    failures: dict[int, LedgerMQError] = field(default_factory=dict)
    parquet_failure: LedgerMQError | None = None

    @classmethod
    async def take(cls, store: ObjectStore, bundles: int) -> Self:
        """List Parquet files first: a file that is listed was made by a plan that existed before."""
        found = cls()
        try:
            async for info in list_files(store):
                found.parquet[info.key] = info
        except LedgerMQError as error:
            found.parquet_failure = error

        async def look(bundle: int) -> None:
            try:
                listing = found.bundles[bundle] = await Listing.take(store, bundle)
            except LedgerMQError as error:
                found.failures[bundle] = error
            else:
                if listing.unreadable is not None:
                    found.failures[bundle] = listing.unreadable

        await all_of((look(bundle) for bundle in range(bundles)), BUNDLES_AT_ONCE)
        return found


async def _list(store: ObjectStore, folder: str) -> Numbered:
    return {number: info async for number, info in list_numbered(store, folder)}


async def _read(store: ObjectStore, bundle: int, number: int) -> Plan | None:
    plan = await read_plan(store, bundle, number)
    if plan is None:
        return None
    slots, files = (slot.slot for slot in plan.slots), (file.key for file in plan.files)
    return Plan(plan.number, tuple(slots), tuple(files))
