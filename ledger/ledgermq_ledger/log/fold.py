"""Fold a ledger: decide which segments are valid, and what state they add up to (design L1).

    CLAIM            valid if its epoch is higher than the current one and it links to the last valid
                     segment; opens a term
    DATA, RELEASE    valid if epoch and writer are the current ones and it links to the last valid segment
    anything else    void: changes nothing, and every reader skips it by this same rule

Seals and opens of partitions that move count before the batches of their segment
(`ledgermq_ledger.log.partitions.moves`).

No I/O here, and no clock. Safety invariants 2, 3 and 4 are asserted where the offsets are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ledgermq.errors import DataDamaged
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.partitions.message_ids import MessageIds
from ledgermq_ledger.log.partitions.moves import Moves, key_of
from ledgermq_ledger.log.partitions.producers import Producers, ProducerSession, RememberedBatch
from ledgermq_ledger.log.segments.segment import keys_of

CLAIMS_REMEMBERED = 16


class LedgerState:
    """The state that a ledger's segments up to `slot` add up to. Mutable; `copy` before sharing."""

    def __init__(self, producer_states_max: int) -> None:
        self.slot = 0
        self.epoch = 0
        self.writer = b""
        self.last_put_id = b""
        self.released = False
        self.ends: dict[PartitionId, int] = {}
        self.producers = Producers(producer_states_max)
        self.ids = MessageIds(producer_states_max)
        self.moves = Moves()
        self.claims: list[fmt.ClaimNote] = []
        self.append_us = 0
        """The latest time that an owner wrote into records, or appended some with ids; 0: none did."""

    def copy(self) -> LedgerState:
        twin = LedgerState(self.producers.states_max)
        twin.slot, twin.epoch, twin.writer = self.slot, self.epoch, self.writer
        twin.last_put_id, twin.released = self.last_put_id, self.released
        twin.ends = dict(self.ends)
        twin.producers = self.producers.copy()
        twin.ids = self.ids.copy()
        twin.moves = self.moves.copy()
        twin.claims = list(self.claims)
        twin.append_us = self.append_us
        return twin

    def share(self, same: LedgerState) -> None:
        """Hold the very ends and producers of a fold of the same segments, instead of equal ones."""
        assert self.last_put_id == same.last_put_id, (self.slot, same.slot)
        self.ends = dict(same.ends)
        self.producers = same.producers.copy()

    def is_valid(self, index: fmt.SegmentIndex) -> bool:
        if index.previous != self.last_put_id:
            return False
        if index.kind == fmt.CLAIM:
            return index.epoch > self.epoch
        return index.kind in (fmt.DATA, fmt.RELEASE) and (index.epoch, index.writer) == (self.epoch, self.writer)

    def apply(self, index: fmt.SegmentIndex, keys: Sequence[PartitionId] | None = None) -> bool:
        """Apply the segment of slot `self.slot + 1`. Return False if it is void. `keys`: the partitions of its
        batches, if the caller holds them.

        Raises DataDamaged on offsets that break density.
        """
        if index.slot != self.slot + 1:
            raise AssertionError(f"slots have to be folded in order: slot {self.slot + 1} is next, not {index.slot}")
        if not self.is_valid(index):
            self.slot = index.slot
            return False
        self.open_segment(index)
        for entry, key in zip(index.batches, keys_of(index) if keys is None else keys, strict=True):
            self.append(entry, key)
        return True

    def open_segment(self, index: fmt.SegmentIndex) -> None:
        """Apply a valid segment without its batches; `append` each of them next."""
        self.slot = index.slot
        self.last_put_id = index.put_id
        self.released = index.kind == fmt.RELEASE
        if index.append_us > self.append_us:
            self.append_us = index.append_us
            self.ids.expire(self.append_us)
        if index.kind == fmt.CLAIM:
            self.epoch, self.writer = index.epoch, index.writer
            note = fmt.ClaimNote(slot=index.slot, epoch=index.epoch, created_ms=index.created_ms, broker=index.broker)
            self.claims = [*self.claims, note][-CLAIMS_REMEMBERED:]
        for seal in index.seals:
            self._seal(seal)
        for opened in index.opens:
            self._open(opened)

    def _seal(self, seal: fmt.PartitionSeal) -> None:
        if self.moves.is_void(seal):
            return
        key = key_of(seal)
        if seal.end != self.ends.get(key, 0):
            raise DataDamaged(
                f"slot {self.slot}: move {seal.move} seals partition {key} at offset {seal.end}, but it ends at"
                f" {self.ends.get(key, 0)}"
            )
        self.moves.add(seal)
        self.producers.drop_partition(key)
        self.ids.drop_partition(key)

    def _open(self, opened: fmt.PartitionOpen) -> None:
        if self.moves.is_void(opened):
            return
        key = key_of(opened)
        if self._is_here(key) or opened.start < self.ends.get(key, 0):
            raise DataDamaged(
                f"slot {self.slot}: move {opened.move} opens partition {key} at offset {opened.start}, but it"
                f" {'is here' if self._is_here(key) else 'was sealed'} with end {self.ends.get(key, 0)}"
            )
        self.producers.take_in(opened.producers, self.slot)
        self.ids.take_in(opened.message_ids, self.slot)
        noted = fmt.PartitionOpen()
        noted.CopyFrom(opened)
        del noted.producers[:], noted.message_ids[:]
        self.moves.add(noted)
        self.ends[key] = opened.start
        self.append_us = max(self.append_us, opened.append_us)

    def _is_here(self, key: PartitionId) -> bool:
        return self.moves.open_of(key) is not None or (key in self.ends and self.moves.seal_of(key) is None)

    def may_open(self, opened: fmt.PartitionOpen) -> bool:
        """Return whether an open would count. It would not if it is void, nor if the partition is still
        here: then another owner has sealed it, and this state is an old one.
        """
        return not self.moves.is_void(opened) and not self._is_here(key_of(opened))

    def seal_now(self, key: PartitionId, move: int, target: int, after: int) -> fmt.PartitionSeal | None:
        """Return the seal that ends a partition here, without its stamped time; None if it would be void,
        or if move `after` (0: none) did not bring the partition here, or not yet.
        """
        if self.moves.move(key) != after:
            return None
        seal = fmt.PartitionSeal(
            topic_id=key.topic_id,
            partition=key.partition,
            move=move,
            end=self.ends.get(key, 0),
            target=target,
            producers=self.producers.states_of(key),
            message_ids=self.ids.ids_of(key),
        )
        return None if self.moves.is_void(seal) else seal

    def judge(
        self, session: ProducerSession, key: PartitionId, record_count: int, sent_crc: int
    ) -> RememberedBatch | None:
        """Judge a batch as `Producers.judge` does; an opened slot of another ledger counts as 0."""
        slot = self.moves.slot_here(key, session.opened_slot)
        here = session if slot == session.opened_slot else replace(session, opened_slot=slot)
        return self.producers.judge(here, *key, record_count, sent_crc)

    def append(self, entry: fmt.BatchEntry, key: PartitionId) -> None:
        """Append a batch of partition `key` to the segment that was opened."""
        end = self.ends.get(key, 0)
        seal = self.moves.seal_of(key)
        if seal is not None:
            raise DataDamaged(f"slot {self.slot}: a batch of partition {key}, which move {seal.move} has sealed")
        if entry.base_offset != end or entry.record_count == 0:
            raise DataDamaged(
                f"slot {self.slot}: batch of topic {entry.topic_id} partition {entry.partition} has"
                f" {entry.record_count} records from offset {entry.base_offset}, but the partition ends at {end}"
            )
        self.ends[key] = end + entry.record_count
        self.producers.add(entry, self.slot)
        self.ids.add(entry, self.slot)

    def end(self, topic_id: int, partition: int) -> int:
        """Return the next offset of a partition."""
        return self.ends.get(PartitionId(topic_id, partition), 0)

    def drop_topic(self, topic_id: int) -> None:
        """Drop a removed topic once no data of it is left."""
        for key in [key for key in self.ends if key.topic_id == topic_id]:
            del self.ends[key]
        self.producers.drop_topic(topic_id)
        self.ids.drop_topic(topic_id)
        self.moves.drop_topic(topic_id)

    def to_proto(self) -> fmt.LedgerState:
        proto = fmt.LedgerState(
            slot=self.slot,
            epoch=self.epoch,
            writer=self.writer,
            last_put_id=self.last_put_id,
            released=self.released,
            ends=[fmt.PartitionEnd(topic_id=t, partition=p, end=end) for (t, p), end in sorted(self.ends.items())],
            forgotten_to=self.producers.forgotten_to,
            claims=self.claims,
            append_us=self.append_us,
            message_ids=self.ids.encode(),
            seals=self.moves.seals(),
            opens=self.moves.opens(),
        )
        proto.MergeFromString(self.producers.encode())
        return proto

    @classmethod
    def from_proto(cls, proto: fmt.LedgerState, producer_states_max: int) -> LedgerState:
        state = cls(producer_states_max)
        state.slot, state.epoch, state.writer = proto.slot, proto.epoch, proto.writer
        state.last_put_id, state.released = proto.last_put_id, proto.released
        state.ends = {PartitionId(e.topic_id, e.partition): e.end for e in proto.ends}
        state.producers.load(proto.producers, proto.forgotten_to)
        state.moves.load([*proto.seals, *proto.opens])
        state.claims = list(proto.claims)
        state.append_us = proto.append_us
        state.ids.load(proto.message_ids)
        return state
