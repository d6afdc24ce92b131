"""Read what the pins of a checkpoint keep (design I10).

    pin of a cut with base n     checkpoint n; its pages, its snapshot; slots from its trim slot to the place;
                                 the Parquet files that it lists at or above its log starts
    while the cut is pending     every slot from the trim slot on, and every version of keyed partitions
    once it is taken             the placed version of each keyed partition, and its files; what the bases of other
                                 bundles list of partitions that have moved since

A plan stays as long as a segment that it names (`ledgermq_ledger.garbage.ledgers.plans`). A base never goes while its
pin is there, so all of this can be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ledgermq.errors import DataDamaged
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.cut import read_cut, versions_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keyed.version import read_version
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.parquet.pages import PageReader

NO_END = 2**64


@dataclass(slots=True)
class Pinned:
    """What pins keep of one bundle, and of the partitions that are in it. `slots`: from, to (inclusive) and the cut.
    The values of the others: a cut that keeps it.
    """

    slots: list[tuple[int, int, int]] = field(default_factory=list)
    objects: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    """Parquet files of logs, which are handed over before they are deleted."""
    pending: int = 0
    """A cut that is pending, or whose object is not there."""

    def keeps(self, key: str) -> int | None:
        """Return a cut that keeps an object where it is; None if no pin does."""
        if key in self.objects:
            return self.objects[key]
        if self.pending and keys.parse_keyed(key) is not None:
            return self.pending
        bundle = keys.parse_ledger(key)
        if bundle is not None and keys.is_numbered(key, keys.segments(bundle)):
            slot = keys.number(key)
            return next((cut for first, last, cut in self.slots if first <= slot <= last), None)
        return None

    def add(self, other: Pinned) -> None:
        self.slots += other.slots
        self.objects |= other.objects
        self.files |= other.files
        self.pending = self.pending or other.pending


class PinReader:
    """Reads what pins keep; what a pin of a taken cut keeps never changes, and is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[tuple[int, int, bool], Pinned] = {}

    async def read(self, checkpoint: fmt.Checkpoint) -> Pinned:
        """Return what the pins of a checkpoint keep. Free if it has none.

        Raises DataDamaged if something of it is missing: then nothing may be deleted.
        """
        found = Pinned()
        for pin in checkpoint.pins:
            at = checkpoint.bundle, pin.cut, bool(checkpoint.state.opens)
            pinned = self._known.get(at)
            if pinned is None:
                pinned = await self._of_pin(checkpoint.bundle, pin, has_moves=at[2])
                if not pinned.pending:
                    self._known[at] = pinned
            found.add(pinned)
        return found

    async def of_base(self, base: fmt.Checkpoint, cut: fmt.Cut) -> Pinned:
        """Return what a cut names in one bundle, and the placed versions of all."""
        pinned = await self._named_by(base, cut.id)
        pinned.slots = [(base.trim_slot, cut.bundles[base.bundle].slot, cut.id)]
        for place, number in versions_of(cut).items():
            await self._add_version(pinned, place, number, cut.id)
        return pinned

    async def _of_pin(self, bundle: int, pin: fmt.Pin, *, has_moves: bool) -> Pinned:
        base = await self._base(bundle, pin.base)
        cut = await read_cut(self._store, pin.cut)
        if cut is None or bundle >= len(cut.bundles):
            pinned = await self._named_by(base, pin.cut)
            pinned.slots = [(base.trim_slot, NO_END, pin.cut)]
            pinned.pending = pin.cut
            return pinned
        pinned = await self.of_base(base, cut)
        for other in cut.bundles if has_moves else ():
            if other.bundle != bundle:
                pinned.files |= (await self._named_by(await self._base(other.bundle, other.base), pin.cut)).files
        return pinned

    async def _base(self, bundle: int, number: int) -> fmt.Checkpoint:
        key = keys.checkpoint(bundle, number)
        try:
            return decode_checkpoint(await self._store.get(key), key)
        except ObjectMissing as error:
            raise DataDamaged(f"{key}: it is missing, but a cut needs it", object_key=key) from error

    async def _named_by(self, base: fmt.Checkpoint, cut: int) -> Pinned:
        bundle, pinned = base.bundle, Pinned()
        pinned.objects[keys.checkpoint(bundle, base.number)] = cut
        if base.snapshot_plan:
            pinned.objects[keys.snapshot(bundle, base.snapshot_plan)] = cut
        pages = PageReader(self._store, bundle)
        for part in base.partitions:
            try:
                pinned.objects |= {keys.file_page(bundle, page): cut for page in await pages.chain(part)}
                files = await pages.files_from(part, max(part.log_start, part.parquet_start))
            except ObjectMissing as error:
                text = f"{error.object_key}: it is missing, but a cut needs it"
                raise DataDamaged(text, object_key=error.object_key) from error
            pinned.files |= {file.key: cut for file in files}
        return pinned

    async def _add_version(self, pinned: Pinned, place: PartitionId, number: int, cut: int) -> None:
        key = keys.keyed_version(place, number)
        pinned.objects[key] = cut
        try:
            version = await read_version(self._store, place, number)
        except ObjectMissing as error:
            raise DataDamaged(f"{key}: it is missing, but a cut needs it", object_key=key) from error
        pinned.objects |= {file.key: cut for file in version.files}
