"""Remember which partitions a ledger gave to another one, and which it received (design Y1 to Y5).

A *seal* ends a partition in the ledger that it leaves; an *open* begins it in the ledger that it
moves to, with what the seal recorded. Both are a part of the fold, fed by the indexes of valid
segments, so they are the same in every process. Of each partition the newest of the two is kept
always: by its move, what comes later and belongs to the same or an earlier move is void.

    seal    end | target bundle | producers, ids of messages and stamped time of the partition
    open    start | source bundle | the same producers, ids and time

Moves are numbered by the offset of the record of `__metadata` that decided them. No I/O here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ledgermq.errors import NotOwner
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import PartitionId

Move = fmt.PartitionSeal | fmt.PartitionOpen

SLOT_BITS = 40
MOVES_END = 1 << 23
"""An opened slot is a positive number of 63 bits: 23 of the move, and 40 of the slot."""


def key_of(move: Move) -> PartitionId:
    return PartitionId(move.topic_id, move.partition)


class Moves:
    """The newest seal or open of each partition: a mutable fold. The messages are never changed."""

    def __init__(self) -> None:
        self._newest: dict[PartitionId, Move] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def copy(self) -> Moves:
        twin = Moves()
        twin._newest = dict(self._newest)
        return twin

    def move(self, key: PartitionId) -> int:
        """Return the newest move of a partition that this ledger knows; 0: none."""
        newest = self._newest.get(key)
        return 0 if newest is None else newest.move

    def seal_of(self, key: PartitionId) -> fmt.PartitionSeal | None:
        """Return the seal of a partition that has left; None: it is here, or never was."""
        newest = self._newest.get(key)
        return newest if isinstance(newest, fmt.PartitionSeal) else None

    def open_of(self, key: PartitionId) -> fmt.PartitionOpen | None:
        """Return the open of a partition that came from another ledger and is here."""
        newest = self._newest.get(key)
        return newest if isinstance(newest, fmt.PartitionOpen) else None

    def check_here(self, key: PartitionId) -> None:
        """Raise NotOwner, which names the other bundle, if a partition has left."""
        seal = self.seal_of(key)
        if seal is not None:
            raise NotOwner(
                f"partition {key.partition} of topic id {key.topic_id} has moved to bundle {seal.target}"
                f" (move {seal.move}, from offset {seal.end} on)"
            )

    def is_void(self, move: Move) -> bool:
        """Return whether a seal or open changes nothing: it belongs to the newest move or an earlier
        one, or seals what has left.
        """
        key = key_of(move)
        has_left = isinstance(move, fmt.PartitionSeal) and self.seal_of(key) is not None
        return has_left or move.move <= self.move(key)

    def add(self, move: Move) -> None:
        self._newest[key_of(move)] = move

    def opened_slot(self, key: PartitionId, slot: int) -> int:
        """Return what an owner hands to a producer that opens a partition here: the slot, and the
        move that brought the partition.
        """
        assert slot < 1 << SLOT_BITS, slot
        return self.move(key) << SLOT_BITS | slot

    def slot_here(self, key: PartitionId, opened_slot: int) -> int:
        """Return the slot of this ledger in an opened slot; 0 if it was read from another ledger,
        whose slots say nothing here.
        """
        move, slot = opened_slot >> SLOT_BITS, opened_slot & ((1 << SLOT_BITS) - 1)
        return slot if move == self.move(key) else 0

    def drop_topic(self, topic_id: int) -> None:
        """Drop a removed topic; its id never comes back."""
        for key in [key for key in self._newest if key.topic_id == topic_id]:
            del self._newest[key]

    def seals(self) -> Iterator[fmt.PartitionSeal]:
        """Yield the seals of the partitions that have left, by partition."""
        return (move for _, move in sorted(self._newest.items()) if isinstance(move, fmt.PartitionSeal))

    def opens(self) -> Iterator[fmt.PartitionOpen]:
        """Yield the opens of the partitions that came and are here, by partition."""
        return (move for _, move in sorted(self._newest.items()) if isinstance(move, fmt.PartitionOpen))

    def load(self, moves: Iterable[Move]) -> None:
        for move in moves:
            self.add(move)


def open_after(seal: fmt.PartitionSeal, source: int) -> fmt.PartitionOpen:
    """Return the open that continues what a seal in the ledger of bundle `source` has ended."""
    return fmt.PartitionOpen(
        topic_id=seal.topic_id,
        partition=seal.partition,
        move=seal.move,
        start=seal.end,
        source=source,
        producers=seal.producers,
        message_ids=seal.message_ids,
        append_us=seal.append_us,
    )
