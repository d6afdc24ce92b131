"""Stage and complete transactions in one bundle: one `Participant` for each bundle that a broker owns.

How a broker uses it (one term, one bundle; no call waits):

    p = Participant(bundle, limits)
    for record in snapshot + tail: p.apply(record.key, record.value)
    decision = p.intake.stage(…)    # append decision.records and the new batches to `__staged`, as ONE group
    decision = p.completing.complete(…)     # DONE: answer "done" when decision.records are durable
                                    # UNSURE: ask the coordinator to CONFIRM, and call it again with `confirmed`
                                    # RETRY: the completion has begun; repeat these two until it is done:
    chunk = p.completing.next_chunk(producer_id)    # read the staged bytes of chunk.references
    decision = p.completing.admit(chunk)    # True: append the copies, decision.records and the records of the
                                            # groups (chunk.groups, with the last chunk) as ONE group

An answer or an error without records is final only after a fence check (X2, X3).

If a completion makes no progress, an operator may have given up this bundle's part: ask the coordinator to
CONFIRM the commit, and call `completing.give_up` if it does not. What else is due, the owner learns from
`completing.unfinished` and `upkeep`. `now_ms` is the wall clock everywhere.

Invariant: a decision's records, applied in any order to a copy of the previous state, give the current
state. The rules X1 to X20 are in docs/design.md, chapter 16.
"""

from __future__ import annotations

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.producer_ids import kafka_producer_id
from ledgermq_broker.transactions.state.added.by_records import ByRecords
from ledgermq_broker.transactions.state.limits import TransactionLimits
from ledgermq_broker.transactions.state.participating.completing import Completing
from ledgermq_broker.transactions.state.participating.intake import Intake
from ledgermq_broker.transactions.state.participating.served_bundle import ServedBundle
from ledgermq_broker.transactions.state.participating.staged import StagedDelayed, StagedShares
from ledgermq_broker.transactions.state.participating.upkeep import Upkeep
from ledgermq_broker.transactions.state.records import NoteEntry, ReferencesEntry
from ledgermq_broker.transactions.state.types import Stream, Transaction
from ledgermq_broker.transactions.state.wire import transaction_to_proto
from ledgermq_ledger.keys import PartitionId


class Participant:
    def __init__(self, bundle: int, limits: TransactionLimits) -> None:
        self.bundle = bundle
        self._state = ServedBundle(bundle, limits)
        self.intake = Intake(self._state)
        self.by_records = ByRecords(self._state, self.intake)
        self.completing = Completing(self._state)
        self.upkeep = Upkeep(self._state)

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Apply one record of the log, in order. Raises DataDamaged, FormatNotSupported."""
        self._state.apply(key, value)

    @property
    def notes_gone(self) -> int:
        """Number of notes that were forgotten in this term. A confirmation counts only if this number is
        the same as when the coordinator was asked (X16).
        """
        return self._state.notes_gone

    @property
    def open_count(self) -> int:
        """Transactions that have something staged here."""
        return self._state.open_count

    def has_staged(self, producer_id: bytes, epoch: int, number: int) -> bool:
        return (epoch, number) in self._state.of_producer(producer_id)

    def staged_in(self, topic_id: int, partition: int) -> int:
        """Return how many transactions have batches for a partition that are not visible yet."""
        place = topic_id, partition
        return sum(
            any((stream.topic_id, stream.partition) == place for stream in staged.streams)
            for staged in self._state.all()
        )

    def of_kafka_in(self, place: PartitionId) -> list[Transaction]:
        """Return the transactions of the Kafka protocol that have batches for a partition."""
        stream = Stream(b"", *place)
        return [
            staged.transaction
            for staged in self._state.all()
            if stream in staged.streams and kafka_producer_id(staged.transaction.producer_id) is not None
        ]

    @property
    def staged_bytes(self) -> int:
        return self._state.size_bytes

    @property
    def staged_batches(self) -> int:
        return self._state.batches

    @property
    def shares(self) -> StagedShares:
        """Return what each principal has staged."""
        return self._state.shares

    @property
    def delayed(self) -> StagedDelayed:
        """Return what is staged of delayed batches."""
        return self._state.delayed

    @property
    def note_count(self) -> int:
        return len(self._state.notes)

    def oldest_ms(self) -> int | None:
        """Return when the oldest staged batch was staged; None if nothing is staged."""
        return min((staged.staged_ms for staged in self._state.all()), default=None)

    def lowest_offset(self) -> int | None:
        """Return the lowest offset of `__staged` that is still needed; None if nothing is staged."""
        return min(
            (
                reference.offset
                for staged in self._state.all()
                for value in staged.records.values()
                for reference in self._state.alive(value)
            ),
            default=None,
        )

    def staged_infos(self) -> list[pb.StagedInfo]:
        """Return what each transaction has staged, without groups, the oldest first."""
        found = [
            pb.StagedInfo(
                transaction=transaction_to_proto(staged.transaction),
                batches=staged.batches,
                bytes=staged.size_bytes,
                oldest_ms=staged.staged_ms,
            )
            for staged in self._state.all()
        ]
        return sorted(found, key=lambda info: info.oldest_ms)

    def entries(self) -> list[ReferencesEntry | NoteEntry]:
        """Return the whole state as entries of the log."""
        return self._state.entries()
