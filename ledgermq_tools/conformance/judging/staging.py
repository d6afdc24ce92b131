"""Judge how a client stages batches in transactions and ends them: pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ledgermq.errors import TransactionFenced
from ledgermq.protocol import ledgermq_pb2 as pb

Begun = tuple[str, bytes, int, int]
"""Transactional id, producer id, epoch and coordinator, as InitTransactions answers them."""
Stream = tuple[bytes, str, int]
"""Branch, topic and partition."""
Counted = tuple[bytes, int, int]
"""Branch, topic id and partition."""


@dataclass(slots=True)
class _Transaction:
    """`sent`: by stream and sequence, checksum and length. `stored`: by what a decision counts, the sequences that were
    answered without an error.
    """

    sent: defaultdict[Stream, dict[int, tuple[int, int]]] = field(default_factory=lambda: defaultdict(dict))
    stored: defaultdict[Counted, set[int]] = field(default_factory=lambda: defaultdict(set))


class Staging:
    """`find`: takes what a client did wrong."""

    def __init__(self, find: Callable[[str], None]) -> None:
        self._find = find
        self._begun: set[Begun] = set()
        self._fenced: set[str] = set()
        self._transactions: defaultdict[tuple[Begun, int], _Transaction] = defaultdict(_Transaction)

    def asked(self, method: str, request: Any) -> None:
        if method == "InitTransactions" and request.transactional_id in self._fenced:
            self._find(
                f"transaction {request.transactional_id}: began again after {TransactionFenced.code}; another process"
                " uses the id now, so a client stops"
            )
        elif method == "Stage":
            self._judge_stage(request.header)
        elif method == "EndTransaction" and request.outcome != pb.ABORTED:
            self._judge_end(request)

    def answered(self, method: str, request: Any, answer: Any) -> None:
        if method == "InitTransactions":
            self._begun.add((request.transactional_id, answer.producer_id, answer.epoch, answer.coordinator))
        elif method == "Stage":
            ref = request.header.transaction
            stored = self._transactions[_begun_of(ref), ref.number].stored
            for staged, result in zip(request.header.batches, answer.results, strict=False):
                self.refused(ref.transactional_id, result.error)
                if not result.error.code:
                    counted = (request.header.branch, result.topic_id, staged.batch.partition)
                    stored[counted].add(staged.sequence)

    def failed(self, method: str, request: Any, error: pb.Error) -> None:
        if method == "EndTransaction":
            self.refused(request.transaction.transactional_id, error)

    def refused(self, transactional_id: str, error: pb.Error) -> None:
        if (error.exact_code or error.code) == TransactionFenced.code:
            self._fenced.add(transactional_id)

    def _judge_stage(self, header: pb.StageHeader) -> None:
        begun = _begun_of(header.transaction)
        name = f"transaction {begun[0]}"
        if begun not in self._begun:
            self._find(f"{name}: staged under epoch {begun[2]}, which InitTransactions has not answered to it")
        transaction = self._transactions[begun, header.transaction.number]
        for staged in header.batches:
            batch = staged.batch
            where = f"{name}, {batch.topic}-{batch.partition}"
            sent = transaction.sent[header.branch, batch.topic, batch.partition]
            if staged.sequence > len(sent):
                self._find(
                    f"{where}: sequences count batches from 0; {staged.sequence} comes after {len(sent)} batches"
                )
            if sent.setdefault(staged.sequence, (batch.crc, batch.length)) != (batch.crc, batch.length):
                self._find(f"{where}: repeated sequence {staged.sequence} with other bytes than before")

    def _judge_end(self, request: pb.EndTransactionRequest) -> None:
        ref = request.transaction
        known = self._transactions.get((_begun_of(ref), ref.number), _Transaction())
        counts: Mapping[Counted, int] = {
            (count.branch, count.topic_id, count.partition): count.batches
            for part in request.parts
            for count in part.counts
        }
        name = f"transaction {ref.transactional_id}"
        for stream in sorted(known.stored.keys() | counts.keys()):
            counted, stored = counts.get(stream, 0), len(known.stored.get(stream, ()))
            if counted != stored:
                self._find(
                    f"{name}: commits {counted} batches of partition {stream[2]} of topic {stream[1]}; {stored} were"
                    " answered as staged"
                )


def _begun_of(ref: pb.TransactionRef) -> Begun:
    return ref.transactional_id, ref.producer_id, ref.epoch, ref.coordinator
