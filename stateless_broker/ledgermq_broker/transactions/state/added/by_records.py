"""Stage what Kafka clients send: their sequences count records, and go on from one transaction of an epoch to the next.

So a bundle remembers, for each such producer, the last transaction that has ended here, and the next sequence of
each partition (X24, `ServedBundle.last`). Nothing is staged for a transaction at or below that one, so what arrives
late never comes into a later transaction.

A batch that is repeated has the first sequence and the number of records of the staged one. Its checksum says
nothing: the Arrow bytes of another broker may differ.
"""

from __future__ import annotations

from ledgermq.errors import LedgerMQError, OutOfOrderSequence, SequencePassed, UnknownProducer
from ledgermq.protocol.naming.producer_ids import nearest
from ledgermq_broker.transactions.state.checks import check_transaction, describe
from ledgermq_broker.transactions.state.participating.intake import Intake, Staging, ToStage
from ledgermq_broker.transactions.state.participating.served_bundle import ServedBundle
from ledgermq_broker.transactions.state.types import Stream, Transaction
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.log_record import Decision
from ledgermq_ledger.log.partitions.shares import NO_PRINCIPAL


class ByRecords:
    def __init__(self, state: ServedBundle, intake: Intake) -> None:
        self._state = state
        self._intake = intake

    def note_open(self, producer_id: bytes, epoch: int, number: int) -> None:
        """Note the open transaction of a producer, as its coordinator has just said."""
        if len(self._state.open) >= self._state.limits.open_max:
            self._state.open.clear()  # their coordinators are asked again
        self._state.open[producer_id] = epoch, number

    def is_open(self, producer_id: bytes, epoch: int, number: int) -> bool:
        """Return whether the coordinator has said in this term that this transaction is open, and has not sent its end
        since.
        """
        return self._state.open.get(producer_id) == (epoch, number)

    def open_number(self, producer_id: bytes, epoch: int, place: PartitionId) -> int:
        """Return the number of the open transaction if it has this epoch, and something staged for the partition; 0:
        ask its coordinator.

        What is staged does not show it alone: it may belong to a transaction that is over, and whose part in this
        bundle an operator gave up (X20). What was staged under that number would be lost.
        """
        stream = Stream(b"", place.topic_id, place.partition)
        pair = self._state.open.get(producer_id, (0, 0))
        staged = self._state.of_producer(producer_id).get(pair)
        return pair[1] if pair[0] == epoch and staged is not None and stream in staged.streams else 0

    def counts(self, transaction: Transaction) -> dict[Stream, int]:
        """Return how many batches of each stream the transaction has staged."""
        found = self._state.find(transaction)
        return {} if found is None else found.counts()

    def stage(
        self, transaction: Transaction, batch: ToStage, next_offset: int, now_ms: int, principal: int = NO_PRINCIPAL
    ) -> Decision[Staging]:
        """Decide whether a batch is staged, as `Intake.stage`. Its sequence is that of its first record.

        Its result may be OutOfOrderSequence if records before it are missing, UnknownProducer if the bundle does not
        know the producer's sequence, SequencePassed if it belongs to an earlier transaction.
        """
        self._intake.check_open(check_transaction(transaction))
        found = self._numbered(transaction, Stream(b"", batch.topic_id, batch.partition), batch)
        if not isinstance(found, int):
            return Decision([], Staging([found], []))
        return self._intake.stage(transaction, b"", [batch._replace(sequence=found)], next_offset, now_ms, principal)

    def _numbered(self, transaction: Transaction, stream: Stream, batch: ToStage) -> int | LedgerMQError | None:
        """Return the number of the batch in its stream; None: it is staged already; or why it cannot be."""
        start = self._state.sequences(transaction).get(PartitionId(stream.topic_id, stream.partition), 0)
        counts = self._state.rows(transaction, stream)
        end = start + counts.total
        sequence = nearest(batch.sequence, end)
        what = f"{describe(transaction)}, partition {stream.topic_id}/{stream.partition}: sequence {sequence}"
        if sequence == end:
            return counts.batches
        if sequence > end:
            if not end:
                return UnknownProducer(f"{what} arrived, and no earlier one is known; abort it, and initialize again")
            return OutOfOrderSequence(f"{what} arrived, but {end} is missing; send the batches before it again")
        if sequence < start:
            return SequencePassed(f"{what} belongs to an earlier transaction, which is over")
        if self._is_staged(transaction, stream, sequence - start, batch.record_count):
            return None
        return OutOfOrderSequence(f"{what} begins within a batch that is staged; {end} is the next one")

    def _is_staged(self, transaction: Transaction, stream: Stream, row: int, record_count: int) -> bool:
        """Return whether a batch of so many records was staged, the first of them being `row` of the stream."""
        found = self._state.find(transaction)
        assert found is not None
        places, at = found.streams[stream], 0
        for number in range(len(places)):
            count = places[number].reference.record_count
            if at >= row:
                return at == row and count == record_count
            at += count
        return False
