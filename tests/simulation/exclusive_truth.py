"""Judge exclusive producers by the ledger alone: by the order of the holders' records and the batches in it, and by
what brokers told producers while it grew.

    written beside a holder        a batch lies behind the record of a holder, and is not the holder's
    told a partition               a broker told a producer that it has a partition, and no record says so
    told a loss                    a producer was told that it is fenced while it had the partition
    holder came back               a producer that had a topic, and lost a partition of it, has that again
    told of a holder               a shared producer was refused while no producer had the partition for itself
    replaced within its lease      an exclusive producer took the place of one that was told of its lease just before
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import HOLD_PARTITIONS, Method
from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq_broker.exclusive.state.records import Holder, decode
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.topic import topic_key
from tests.judges.violation import Violation
from tests.simulation.stored_segments import StoredSegment
from tests.simulation.world import World

NO_HOLDER = Holder(b"", "", 0)


@dataclass
class _Bundle:
    """The fold of a bundle's holders up to a slot. `changes`: all of them, in their order."""

    slot: int = 0
    holders: dict[PartitionId, Holder] = field(default_factory=dict)
    changes: list[tuple[PartitionId, Holder]] = field(default_factory=list)


class ExclusiveTruth:
    def __init__(self, world: World, lease_s: float) -> None:
        self._world = world
        self._lease_s = lease_s
        self._bundles: dict[int, _Bundle] = {}
        self._topic_id: int | None = None
        self._renewed: dict[tuple[PartitionId, bytes], float] = {}
        """When the newest call arrived after which a broker told a producer that it has a partition."""

        self._acquired: dict[tuple[PartitionId, bytes], int] = {}
        """How many changes the bundle had when a producer knew that it has a partition."""

    # While the run goes on

    def arrived(
        self, method: Method, request: Any, bundle_of: Callable[[str, int], int | None]
    ) -> Callable[[Any], None]:
        """Note a call at a broker; return what is to be called with its answer. `bundle_of`: a topic's partition."""
        if method is not HOLD_PARTITIONS or not request.producer_id:
            return lambda answer: None
        places = []
        for wanted in request.partitions:
            bundle, topic_id = bundle_of(wanted.topic, wanted.partition), self._world.topic_ids.get(wanted.topic)
            if bundle is not None and topic_id is not None:
                self._look(bundle)
                key = PartitionId(topic_id, wanted.partition)
                places.append((bundle, key, self.holder(bundle, key), len(self._bundles[bundle].changes)))
        arrived_s = self._world.loop.time()

        def answered(answer: Any) -> None:
            if isinstance(answer, LedgerMQError) or len(places) != len(answer.holders):
                return
            for (bundle, key, before, changes), told in zip(places, answer.holders, strict=True):
                if told.is_caller:
                    self._told(bundle, key, before, changes, request, arrived_s, told)

        return answered

    def _told(
        self,
        bundle: int,
        key: PartitionId,
        before: Holder,
        changes: int,
        request: pb.HoldPartitionsRequest,
        arrived_s: float,
        told: pb.PartitionHolder,
    ) -> None:
        """A broker told a producer that it has a partition."""
        self._look(bundle)
        meanwhile = [holder for place, holder in self._bundles[bundle].changes[changes:] if place == key]
        if request.producer_id not in [holder.producer_id for holder in (before, *meanwhile)]:
            self._violate("told a partition", f"{request.name} was told that it has {key}: {before}, then {meanwhile}")
        if before.producer_id and before.producer_id != request.producer_id and not request.fences:
            renewed_s = self._renewed.get((key, before.producer_id))
            if before.number == told.number - 1 and renewed_s is not None:
                left_s = renewed_s + self._lease_s - self._world.loop.time()
                if left_s > 0:
                    text = f"{request.name} took {key} from {before.name} {left_s:.3f} s before its lease ended"
                    self._violate("replaced within its lease", text)
            self._world.coverage.saw("an expired holder was replaced")
        self._renewed[key, request.producer_id] = arrived_s

    def acquired(self, producer_id: bytes, bundle: int, key: PartitionId) -> None:
        """A producer knows that it has a partition."""
        self._look(bundle)
        self._acquired[key, producer_id] = len(self._bundles[bundle].changes)

    def sends(self, bundle: int, key: PartitionId) -> Callable[[], None]:
        """A shared producer sends a record. Return what is to be called if the answer is that the partition is held."""
        self._look(bundle)
        before, changes = self.holder(bundle, key), len(self._bundles[bundle].changes)

        def told() -> None:
            self._look(bundle)
            meanwhile = [place for place, _ in self._bundles[bundle].changes[changes:]]
            if not before.producer_id and key not in meanwhile:
                self._violate("told of a holder", f"a shared producer was told that {key} is held, and it is not")

        return told

    def told_loss(self, producer_id: bytes, bundle: int, key: PartitionId) -> None:
        """A producer learned that it lost a partition."""
        self._look(bundle)
        if self.holder(bundle, key).producer_id == producer_id:
            self._violate("told a loss", f"{producer_id.hex()} was told that it lost {key}, and has it")

    def holder(self, bundle: int, key: PartitionId) -> Holder:
        """Return the holder at the end of the ledger, as of the last look."""
        return self._bundles[bundle].holders.get(key, NO_HOLDER)

    # At the end

    def judge(self, bundles: int) -> Iterator[Violation]:
        for bundle in range(1, bundles):
            holders: dict[PartitionId, Holder] = {}
            for segment in self._world.store.history(bundle):
                if segment.valid:
                    yield from self._judge_segment(bundle, segment, holders)
            yield from self._judge_changes(bundle)

    def _judge_changes(self, bundle: int) -> Iterator[Violation]:
        self._look(bundle)
        last: dict[PartitionId, Holder] = {}
        lost: set[tuple[PartitionId, bytes]] = set()
        for number, (key, holder) in enumerate(self._bundles[bundle].changes):
            former = last.get(key, NO_HOLDER).producer_id
            if former != holder.producer_id and self._acquired.get((key, former), number + 1) <= number:
                lost.add((key, former))
            if (key, holder.producer_id) in lost:
                yield Violation("holder came back", f"bundle {bundle}: {holder} has {key} again")
            last[key] = holder

    def _judge_segment(
        self, bundle: int, segment: StoredSegment, holders: dict[PartitionId, Holder]
    ) -> Iterator[Violation]:
        changed = dict(self._changes(segment))
        for entry in segment.index.batches:
            key = PartitionId(entry.topic_id, entry.partition)
            if (text := _wrong(key, entry.producer_id, holders.get(key, NO_HOLDER))) is not None:
                yield Violation("written beside a holder", f"bundle {bundle}, slot {segment.slot}: {text}")
            elif key in changed:
                text = f"{key} has a batch in the segment that changes its holder"
                yield Violation("written beside a holder", f"bundle {bundle}, slot {segment.slot}: {text}")
            elif key in holders and holders[key].producer_id:
                self._world.coverage.saw("a batch of an exclusive producer was stored")
        for key, holder in changed.items():
            former = holders.get(key, NO_HOLDER)
            if holder.number and holder.number <= former.number:
                yield Violation("holder goes back", f"bundle {bundle}, slot {segment.slot}: {key}: {former}, {holder}")
            self._world.coverage.saw("a holder was recorded" if holder.producer_id else "a holder ended")
        holders.update(changed)

    # Inside

    def _look(self, bundle: int) -> None:
        """Fold what has been stored since the last look."""
        store, known = self._world.store, self._bundles.setdefault(bundle, _Bundle())
        slots = store.segments[bundle]
        while known.slot + 1 in slots:
            known.slot += 1
            index, data = slots[known.slot]
            if not store.is_valid(bundle, known.slot):
                continue
            for key, holder in self._changes(StoredSegment(known.slot, index, data, True)):
                known.holders[key] = holder
                known.changes.append((key, holder))

    def _changes(self, segment: StoredSegment) -> Iterator[tuple[PartitionId, Holder]]:
        topic_id = self._find_topic()
        if topic_id is None or all(entry.topic_id != topic_id for entry in segment.index.batches):
            return
        index = fmt.SegmentIndex(batches=[entry for entry in segment.index.batches if entry.topic_id == topic_id])
        for _, key, value in StoredSegment(segment.slot, index, segment.data, True).records():
            entry = decode(key, value)
            yield entry.key, entry.holder or NO_HOLDER

    def _find_topic(self) -> int | None:
        if self._topic_id is None:
            for segment in self._world.store.history(keys.METADATA_BUNDLE):
                for offset, key, value in segment.records() if segment.valid else ():
                    if key == topic_key(keys.HOLDERS_TOPIC) and value is not None:
                        self._topic_id = fmt.TopicRecord.FromString(value).topic_id or offset
        return self._topic_id

    def _violate(self, kind: str, text: str) -> None:
        self._world.note("judge", f"{kind}: {text}")
        self._world.violations.append(Violation(kind, f"{text} at {self._world.loop.time():.3f} s"))


def _wrong(key: PartitionId, producer_id: bytes, holder: Holder) -> str | None:
    if producer_id == holder.producer_id or not (holder.producer_id or is_exclusive(producer_id)):
        return None
    return f"{key} has a batch of {producer_id.hex() or 'a producer without an id'}, and belongs to {holder}"
