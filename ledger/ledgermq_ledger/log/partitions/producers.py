"""Remember the producers of each partition, and judge their batches by it (idempotence).

This is a fold: it is fed by the batch entries of valid segments, in order, and is the same in every
process that reads them. A count of states (`cluster.json`) bounds its memory, never a clock. The
state whose last batch is in the oldest slot is dropped first, and `forgotten_to` keeps the highest
such slot.

A batch of an unknown producer is accepted only if it is the producer's first in the partition, and
the producer learned the ledger's end after that slot. So no batch of a dropped state can be stored
twice (design P4).

A batch counts as stored only if it is the one that was: its sequence, its number of records and its
checksum are compared. Otherwise a program that states another's id would have its batch acknowledged in
the place of the other's, which would be dropped as a repetition.

An id in a partition belongs to the principal that used it first, where that is known: a batch that another
principal sends under it is refused, and changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from ledgermq.errors import OutOfOrderSequence, ProducerEpochFenced, SequencePassed, UnknownProducer
from ledgermq.protocol.limits import WINDOW_BATCHES
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId


@dataclass(frozen=True, slots=True)
class ProducerSession:
    """What an idempotent producer states about a batch.

    `sequence`: that of its first record in the partition, counted in records from 0. `principal`: a hash of the
    name of the principal that sends it (`hash_of` of the broker's access rules); 0: rules are not enforced, or a
    broker sends it.
    """

    id: bytes
    epoch: int
    sequence: int
    opened_slot: int = 0
    principal: int = 0


@dataclass(frozen=True, slots=True)
class RememberedBatch:
    sequence: int
    record_count: int
    base_offset: int
    slot: int
    crc: int = 0
    """Of the batch as its producer sent it; 0: not known."""


def is_anothers(principal: int, owner: int) -> bool:
    """Return whether something belongs to `owner`, and another principal uses it. 0: not known."""
    return 0 not in (principal, owner) and principal != owner


def _check_principal(session: ProducerSession, owner: int) -> None:
    """Raise UnknownProducer for an id that another principal used first: nothing is stored under it for this one,
    which goes on under a new id.
    """
    if is_anothers(session.principal, owner):
        raise UnknownProducer(
            "another principal used this producer id first in the partition; nothing of the batch is stored: a producer"
            " has to draw its own id, and to go on under it"
        )


OLDEST_AT_ONCE = 1000

_HEAD = struct.Struct("<QQQ")
"""The producer's epoch, the slot of its last batch, and the hash of its principal."""
_BATCH = struct.Struct("<QIQQI")
"""The fields of RememberedBatch; the last batch comes last."""
_SPAN = struct.Struct("<QI")
_PLACE = struct.Struct("<QI")


def memory_key(producer_id: bytes, topic_id: int, partition: int) -> bytes:
    """Return the key of a producer in a partition: in a third of the bytes that a tuple takes."""
    return producer_id + _PLACE.pack(topic_id, partition)


class ProducerMemory:
    """The state of one producer in one partition.

    Immutable, so that folds can share it. There are many, so each takes few bytes: it is packed, or as a checkpoint
    stores it. It is packed at the first use, and encoded once.
    """

    __slots__ = ("_packed", "_stored")

    def __init__(self, packed: bytes, stored: fmt.ProducerState | None = None) -> None:
        self._packed = packed
        self._stored: fmt.ProducerState | bytes | None = stored

    @property
    def epoch(self) -> int:
        epoch: int = _HEAD.unpack_from(self._packed or self._pack())[0]
        return epoch

    @property
    def last_slot(self) -> int:
        slot: int = _HEAD.unpack_from(self._packed or self._pack())[1]
        return slot

    @property
    def principal(self) -> int:
        """Return the hash of the principal whose id it is; 0: not known."""
        principal: int = _HEAD.unpack_from(self._packed or self._pack())[2]
        return principal

    @property
    def packed_batches(self) -> bytes:
        """Return a _BATCH for each remembered batch."""
        return (self._packed or self._pack())[_HEAD.size :]

    @property
    def batches(self) -> tuple[RememberedBatch, ...]:
        """Return the remembered batches, oldest first."""
        return tuple(RememberedBatch(*batch) for batch in _BATCH.iter_unpack(self.packed_batches))

    @property
    def next_sequence(self) -> int:
        sequence, record_count = _SPAN.unpack_from(self._packed or self._pack(), -_BATCH.size)
        following: int = sequence + record_count
        return following

    def _pack(self) -> bytes:
        state = self._decoded()
        self._packed = _HEAD.pack(state.epoch, state.last_slot, state.principal) + _pack(state.batches)
        return self._packed

    def encoded(self, key: bytes) -> bytes:
        """Return the bytes of a LedgerState with this producer only; joined with others, they are
        the bytes of one with all of them.
        """
        if not isinstance(self._stored, bytes):
            self._stored = fmt.LedgerState(producers=[self.to_proto(key)]).SerializeToString()
            self._packed = b""
        return self._stored

    def to_proto(self, key: bytes) -> fmt.ProducerState:
        if self._stored is not None:
            return self._decoded()
        topic_id, partition = _PLACE.unpack_from(key, -_PLACE.size)
        return fmt.ProducerState(
            producer_id=key[: -_PLACE.size],
            topic_id=topic_id,
            partition=partition,
            epoch=self.epoch,
            last_slot=self.last_slot,
            principal=self.principal,
            batches=[
                fmt.ProducerBatch(
                    sequence=sequence, record_count=record_count, base_offset=base_offset, slot=slot, crc=crc
                )
                for sequence, record_count, base_offset, slot, crc in _BATCH.iter_unpack(self.packed_batches)
            ],
        )

    def _decoded(self) -> fmt.ProducerState:
        if isinstance(self._stored, bytes):
            return fmt.LedgerState.FromString(self._stored).producers[0]
        assert self._stored is not None
        return self._stored


def _pack(batches: Iterable[fmt.ProducerBatch], slot: int | None = None) -> bytes:
    """`slot`: in which the batches count as stored; None: in their own."""
    return b"".join(
        _BATCH.pack(b.sequence, b.record_count, b.base_offset, b.slot if slot is None else slot, b.crc) for b in batches
    )


class Producers:
    """The states of all producers: a mutable fold that iterates in the order in which states are
    dropped. A plain dict has this order if each state that changes is taken out and put in, and takes
    half the memory of an OrderedDict.
    """

    def __init__(self, states_max: int) -> None:
        self.states_max = states_max
        self.forgotten_to = 0
        self._memory: dict[bytes, ProducerMemory] = {}
        self._oldest: Iterator[tuple[bytes, ProducerMemory]] = iter(())
        """Some of the oldest states, as they once were. A dict finds its first key by passing over all that were
        deleted, so that is done once for many.
        """

    def __len__(self) -> int:
        return len(self._memory)

    def copy(self) -> Producers:
        twin = Producers(self.states_max)
        twin.forgotten_to = self.forgotten_to
        twin._memory = self._memory.copy()
        return twin

    def judge(
        self, session: ProducerSession, topic_id: int, partition: int, record_count: int, sent_crc: int = 0
    ) -> RememberedBatch | None:
        """Return None if the batch is the next one and has to be appended, or the RememberedBatch
        if it is stored already. The session's opened slot is one of this ledger. `sent_crc`: checksum of
        the batch as it was sent; 0: not known.

        Raises UnknownProducer (take a new id unless something is in doubt) and OutOfOrderSequence, and of them
        ProducerEpochFenced and SequencePassed.
        """
        memory = self._memory.get(memory_key(session.id, topic_id, partition))
        if memory is None:
            self._judge_unknown(session)
            return None
        _check_principal(session, memory.principal)
        epoch = memory.epoch
        if session.epoch < epoch:
            raise ProducerEpochFenced(f"producer epoch {session.epoch} was fenced by epoch {epoch}; open a new session")
        if session.epoch > epoch:
            if session.sequence == 0:
                return None
            raise OutOfOrderSequence(
                f"producer epoch {session.epoch} has to begin with sequence 0, not {session.sequence}"
            )
        if session.sequence == memory.next_sequence:
            return None
        batches = memory.batches
        for batch in batches:
            if (batch.sequence, batch.record_count) == (session.sequence, record_count):
                if batch.crc and sent_crc and batch.crc != sent_crc:
                    raise OutOfOrderSequence(
                        f"sequence {session.sequence} is stored at offset {batch.base_offset} with other content than"
                        " this batch has: another program used the producer's id. This batch is not stored"
                    )
                return batch
        passed = session.sequence + record_count <= batches[0].sequence
        raise (SequencePassed if passed else OutOfOrderSequence)(
            f"sequence {session.sequence} with {record_count} records: {memory.next_sequence} is next, "
            f"and the {len(batches)} remembered batches begin at {batches[0].sequence}"
        )

    def next_sequence(self, producer_id: bytes, topic_id: int, partition: int, principal: int = 0) -> int:
        """Return the next sequence of the producer; 0 if it is not remembered, or the id is another principal's."""
        memory = self._memory.get(memory_key(producer_id, topic_id, partition))
        return 0 if memory is None or is_anothers(principal, memory.principal) else memory.next_sequence

    def knows(self, producer_id: bytes, topic_id: int, partition: int) -> bool:
        """Return whether the producer is remembered in the partition."""
        return memory_key(producer_id, topic_id, partition) in self._memory

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
        key = memory_key(entry.producer_id, entry.topic_id, entry.partition)
        memory = self._memory.pop(key, None)
        batches = _BATCH.pack(entry.sequence, entry.record_count, entry.base_offset, slot, entry.sent_crc)
        principal = entry.principal if memory is None else memory.principal or entry.principal
        if memory is not None and memory.epoch == entry.producer_epoch:
            batches = (memory.packed_batches + batches)[-WINDOW_BATCHES * _BATCH.size :]
        self._memory[key] = ProducerMemory(_HEAD.pack(entry.producer_epoch, slot, principal) + batches)
        self._make_room()

    def _make_room(self) -> None:
        while len(self._memory) > self.states_max:
            key, oldest = self._next_oldest()
            if self._memory.get(key) is oldest:  # otherwise it has changed since
                del self._memory[key]
                self.forgotten_to = max(self.forgotten_to, oldest.last_slot)

    def _next_oldest(self) -> tuple[bytes, ProducerMemory]:
        found = next(self._oldest, None)
        if found is None:
            self._oldest = iter(list(islice(self._memory.items(), OLDEST_AT_ONCE)))
            found = next(self._oldest)
        return found

    def states_of(self, partition: PartitionId) -> list[fmt.ProducerState]:
        """Return the producers of a partition, in the order in which states are dropped."""
        place = _PLACE.pack(*partition)
        return [memory.to_proto(key) for key, memory in self._memory.items() if key.endswith(place)]

    def drop_partition(self, partition: PartitionId) -> None:
        """Drop the producers of a partition that takes no more batches here."""
        place = _PLACE.pack(*partition)
        for key in [key for key in self._memory if key.endswith(place)]:
            del self._memory[key]

    def take_in(self, states: Iterable[fmt.ProducerState], slot: int) -> None:
        """Add producers that another ledger remembered, as if their batches were in `slot` of this one."""
        for state in states:
            key = memory_key(state.producer_id, state.topic_id, state.partition)
            self._memory.pop(key, None)
            head = _HEAD.pack(state.epoch, slot, state.principal)
            self._memory[key] = ProducerMemory(head + _pack(state.batches, slot))
        self._make_room()

    def drop_topic(self, topic_id: int) -> None:
        """Drop a removed topic; no producer can write to its id again."""
        for key in [key for key in self._memory if _PLACE.unpack_from(key, -_PLACE.size)[0] == topic_id]:
            del self._memory[key]

    def encode(self) -> bytes:
        """Return the bytes of a LedgerState with the producers only, in the order in which states
        are dropped; they can be merged into one.
        """
        return b"".join([memory.encoded(key) for key, memory in self._memory.items()])

    def load(self, states: Iterable[fmt.ProducerState], forgotten_to: int) -> None:
        self.forgotten_to = forgotten_to
        for state in states:
            key = memory_key(state.producer_id, state.topic_id, state.partition)
            self._memory[key] = ProducerMemory(b"", state)
