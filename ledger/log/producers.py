"""Remember the producers of each partition, and judge their batches by it (idempotence).

This is a fold: it is fed by the batch entries of valid segments, in order, and is the same in every
process that reads them. A count of states (`cluster.json`) bounds its memory, never a clock. The
state whose last batch is in the oldest slot is dropped first, and `forgotten_to` keeps the highest
such slot.

A batch of an unknown producer is accepted only if it is the producer's first in the partition, and
the producer learned the ledger's end after that slot. So no batch of a dropped state can be stored
twice (design P4).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ledger.format import ledgermq_format_pb2 as fmt
from ledger.keys import PartitionId
from ledgermq.errors import OutOfOrderSequence, UnknownProducer
from ledgermq.protocol.limits import WINDOW_BATCHES


@dataclass(frozen=True, slots=True)
class ProducerSession:
    """What an idempotent producer states about a batch.

    `sequence`: that of its first record in the partition, counted in records from 0.
    """

    id: bytes
    epoch: int
    sequence: int
    opened_slot: int = 0


@dataclass(frozen=True, slots=True)
class RememberedBatch:
    sequence: int
    record_count: int
    base_offset: int
    slot: int


ProducerKey = tuple[bytes, int, int]
"""(producer id, topic id, partition)"""


class ProducerMemory:
    """The state of one producer in one partition.

    Immutable, so that folds can share it. There are many, so each is decoded at the first use and
    encoded once.
    """

    __slots__ = ("_batches", "_encoded", "_proto", "epoch", "last_slot")

    def __init__(
        self,
        epoch: int,
        last_slot: int,
        batches: tuple[RememberedBatch, ...] = (),
        proto: fmt.ProducerState | None = None,
    ) -> None:
        self.epoch = epoch
        self.last_slot = last_slot
        self._batches = batches
        self._proto = proto
        self._encoded = b""

    @property
    def batches(self) -> tuple[RememberedBatch, ...]:
        """Return the remembered batches, oldest first."""
        if not self._batches and self._proto is not None:
            self._batches = tuple(
                RememberedBatch(b.sequence, b.record_count, b.base_offset, b.slot) for b in self._proto.batches
            )
        return self._batches

    @property
    def next_sequence(self) -> int:
        last = self.batches[-1]
        return last.sequence + last.record_count

    def encoded(self, key: ProducerKey) -> bytes:
        """Return the bytes of a LedgerState with this producer only; joined with others, they are
        the bytes of one with all of them.
        """
        if not self._encoded:
            self._encoded = fmt.LedgerState(producers=[self.to_proto(key)]).SerializeToString()
        return self._encoded

    def to_proto(self, key: ProducerKey) -> fmt.ProducerState:
        if self._proto is not None:
            return self._proto
        producer_id, topic_id, partition = key
        return fmt.ProducerState(
            producer_id=producer_id,
            topic_id=topic_id,
            partition=partition,
            epoch=self.epoch,
            last_slot=self.last_slot,
            batches=[
                fmt.ProducerBatch(
                    sequence=b.sequence, record_count=b.record_count, base_offset=b.base_offset, slot=b.slot
                )
                for b in self.batches
            ],
        )


class Producers:
    """The states of all producers: a mutable fold that iterates in the order in which states are
    dropped.
    """

    def __init__(self, states_max: int) -> None:
        self.states_max = states_max
        self.forgotten_to = 0
        self._memory: OrderedDict[ProducerKey, ProducerMemory] = OrderedDict()

    def __len__(self) -> int:
        return len(self._memory)

    def copy(self) -> Producers:
        twin = Producers(self.states_max)
        twin.forgotten_to = self.forgotten_to
        twin._memory = self._memory.copy()
        return twin

    def judge(
        self, session: ProducerSession, topic_id: int, partition: int, record_count: int
    ) -> RememberedBatch | None:
        """Return None if the batch is the next one and has to be appended, or the RememberedBatch
        if it is stored already. The session's opened slot is one of this ledger.

        Raises UnknownProducer (take a new id unless something is in doubt) and OutOfOrderSequence.
        """
        memory = self._memory.get((session.id, topic_id, partition))
        if memory is None:
            self._judge_unknown(session)
            return None
        if session.epoch < memory.epoch:
            raise UnknownProducer(
                f"producer epoch {session.epoch} was fenced by epoch {memory.epoch}; open a new session"
            )
        if session.epoch > memory.epoch:
            if session.sequence == 0:
                return None
            raise OutOfOrderSequence(
                f"producer epoch {session.epoch} has to begin with sequence 0, not {session.sequence}"
            )
        if session.sequence == memory.next_sequence:
            return None
        for batch in memory.batches:
            if (batch.sequence, batch.record_count) == (session.sequence, record_count):
                return batch
        raise OutOfOrderSequence(
            f"sequence {session.sequence} with {record_count} records: {memory.next_sequence} is next, "
            f"and the {len(memory.batches)} remembered batches begin at {memory.batches[0].sequence}"
        )

    def next_sequence(self, producer_id: bytes, topic_id: int, partition: int) -> int:
        """Return the next sequence of the producer; 0 if it is not remembered."""
        memory = self._memory.get((producer_id, topic_id, partition))
        return 0 if memory is None else memory.next_sequence

    def _judge_unknown(self, session: ProducerSession) -> None:
        if session.sequence != 0:
            raise UnknownProducer(
                f"this producer is unknown here, so its first sequence has to be 0, not {session.sequence}"
            )
        if session.opened_slot <= self.forgotten_to:
            raise UnknownProducer(
                f"unknown producer opened the partition at slot {session.opened_slot}; those up to slot"
                f" {self.forgotten_to} are forgotten"
            )

    def add(self, entry: fmt.BatchEntry, slot: int) -> None:
        """Add a batch of a valid segment."""
        if not entry.producer_id:
            return
        key = (entry.producer_id, entry.topic_id, entry.partition)
        memory = self._memory.get(key)
        before = memory.batches if memory is not None and memory.epoch == entry.producer_epoch else ()
        newest = RememberedBatch(entry.sequence, entry.record_count, entry.base_offset, slot)
        self._memory[key] = ProducerMemory(entry.producer_epoch, slot, (*before, newest)[-WINDOW_BATCHES:])
        self._memory.move_to_end(key)
        self._make_room()

    def _make_room(self) -> None:
        while len(self._memory) > self.states_max:
            _, forgotten = self._memory.popitem(last=False)
            self.forgotten_to = max(self.forgotten_to, forgotten.last_slot)

    def states_of(self, partition: PartitionId) -> list[fmt.ProducerState]:
        """Return the producers of a partition, in the order in which states are dropped."""
        return [memory.to_proto(key) for key, memory in self._memory.items() if key[1:] == partition]

    def drop_partition(self, partition: PartitionId) -> None:
        """Drop the producers of a partition that takes no more batches here."""
        for key in [key for key in self._memory if key[1:] == partition]:
            del self._memory[key]

    def take_in(self, states: Iterable[fmt.ProducerState], slot: int) -> None:
        """Add producers that another ledger remembered, as if their batches were in `slot` of this one."""
        for state in states:
            batches = tuple(RememberedBatch(b.sequence, b.record_count, b.base_offset, slot) for b in state.batches)
            key = (state.producer_id, state.topic_id, state.partition)
            self._memory[key] = ProducerMemory(state.epoch, slot, batches)
        self._make_room()

    def drop_topic(self, topic_id: int) -> None:
        """Drop a removed topic; no producer can write to its id again."""
        for key in [key for key in self._memory if key[1] == topic_id]:
            del self._memory[key]

    def encode(self) -> bytes:
        """Return the bytes of a LedgerState with the producers only, in the order in which states
        are dropped; they can be merged into one.
        """
        return b"".join([memory.encoded(key) for key, memory in self._memory.items()])

    def load(self, states: Iterable[fmt.ProducerState], forgotten_to: int) -> None:
        self.forgotten_to = forgotten_to
        for state in states:
            key = (state.producer_id, state.topic_id, state.partition)
            self._memory[key] = ProducerMemory(state.epoch, state.last_slot, proto=state)
