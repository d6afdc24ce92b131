"""Encode and decode the records of `__transactions`: typed entries, and their bytes.

    key                                       value
    id/<transactional id>                     Id          an id and its newest transaction
    ref/<producer id>/<epoch>/<number>/<n>    References  batches that were staged in one turn
    done/<producer id>                        Note        how far a bundle completed a producer's last transaction

A record without a value deletes its key. Names contain no "/", producer ids are 32 hexadecimal
digits, numbers are decimal. Invariants: `decode(encode(entry)) == entry`; equal entries have equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from ledgermq.errors import DataDamaged, FormatNotSupported
from ledgermq.protocol.limits import PRODUCER_ID_BYTES
from ledgermq.protocol.naming.names import NAME_PATTERN
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as fmt
from ledgermq_broker.transactions.state.types import Kind, Part, Reference, State, Stream, Transaction
from ledgermq_ledger import keys
from ledgermq_ledger.log.log_record import NUMBER, LogRecord, RecordCodec

DIGEST_BYTES = 16


class Former(NamedTuple):
    """The last decision about an id before its present epoch. Transactions after it, up to that epoch,
    are aborted. `number`: 0 if nothing was decided in `epoch`, and nothing is known of earlier ones.
    `content`: as in `IdValue`.
    """

    epoch: int
    number: int
    state: State
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class IdValue:
    """An id, and its newest decided transaction in this epoch.

    `number` and `state` are those of the transaction; 0 and UNDECIDED if there is none. `changed_ms`:
    wall clock. `parts`: sorted by bundle. `missing`: the bundles, ascending, that have not answered
    "done". Both are empty once the transaction is complete; only an UNRESOLVED one keeps its part.
    `checks`: how often producers were asked.
    `former`: None in the first epoch. `nonce`: of the client object that began the epoch. `counted`:
    digest of the parts that a caller named in the newest decision (`digest_of`); it stays when `parts` go.
    Both are empty if they are not known: an earlier release wrote the record. `principal`: a hash of the
    name of the principal that used the id first; 0: not known. `kept_ms`: how long the id stays after its
    last use; 0: as long as the broker keeps ids. `content`: a digest of what the one transaction of this
    epoch writes, by which a repeated call is recognized; empty: not known. `next_producer`: the end of the
    transaction ended the epoch, too, and its producer goes on under this id (`holder`); empty: it goes on
    in the same epoch.
    """

    producer_id: bytes
    epoch: int
    kind: Kind
    timeout_ms: int
    changed_ms: int
    number: int = 0
    state: State = State.UNDECIDED
    complete: bool = True
    parts: tuple[Part, ...] = ()
    missing: tuple[int, ...] = ()
    check_group: str = ""
    checks: int = 0
    former: Former | None = None
    nonce: bytes = b""
    counted: bytes = b""
    principal: int = 0
    kept_ms: int = 0
    content: bytes = b""
    next_producer: bytes = b""

    @property
    def holder(self) -> tuple[bytes, int]:
        """Return the producer id and the epoch of the producer that may use the id now."""
        if not self.next_producer:
            return self.producer_id, self.epoch
        return self.next_producer, self.epoch + 1 if self.next_producer == self.producer_id else 1

    @property
    def as_former(self) -> Former:
        """Return what to keep of this epoch when it ends. One without a decision keeps what the one before kept."""
        if self.number or self.former is None:
            return Former(self.epoch, self.number, self.state, self.content)
        return self.former


@dataclass(frozen=True, slots=True)
class ReferencesValue:
    """Batches that were staged in one turn. `staged_ms`: wall clock; it stays when their bytes are
    carried forward. `principal`: a hash of the name of the principal that staged them; 0: not known.
    """

    transaction: Transaction
    staged_ms: int
    references: tuple[Reference, ...]
    principal: int = 0


@dataclass(frozen=True, slots=True)
class NoteValue:
    """How far a bundle is with the last transaction of a producer that it has begun to complete.

    While the completion is not `finished`, `part` is what the decision counts in this bundle, and
    `copied` how many batches of each stream are visible; streams without one are left out.
    """

    transaction: Transaction
    outcome: State
    finished: bool
    part: Part | None = None
    copied: Mapping[Stream, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IdEntry:
    transactional_id: str
    value: IdValue | None


@dataclass(frozen=True, slots=True)
class ReferencesEntry:
    producer_id: bytes
    epoch: int
    number: int
    n: int
    value: ReferencesValue | None


@dataclass(frozen=True, slots=True)
class NoteEntry:
    producer_id: bytes
    value: NoteValue | None


Entry = IdEntry | ReferencesEntry | NoteEntry
CODEC: RecordCodec[Entry] = RecordCodec(keys.TRANSACTIONS_TOPIC)

_PRODUCER = rb"([0-9a-f]{32})"
_ID = re.compile(f"id/({NAME_PATTERN})".encode() + rb"\Z")
_REFERENCES = re.compile(rb"ref/" + rb"/".join((_PRODUCER, NUMBER, NUMBER, NUMBER)) + rb"\Z")
_NOTE = re.compile(rb"done/" + _PRODUCER + rb"\Z")


def encode(entry: Entry) -> LogRecord:
    match entry:
        case IdEntry(transactional_id, known):
            return CODEC.record(f"id/{transactional_id}", None if known is None else _id_to(known))
        case ReferencesEntry(producer_id, epoch, number, n, references):
            key = f"ref/{producer_id.hex()}/{epoch}/{number}/{n}"
            return CODEC.record(key, None if references is None else _references_to(references))
        case NoteEntry(producer_id, note):
            return CODEC.record(f"done/{producer_id.hex()}", None if note is None else _note_to(note))


def decode(key: bytes, value: bytes | None) -> Entry:
    """Decode one record. Raises as `RecordCodec.decode`."""
    return CODEC.decode(key, value, _entry_of)


def _entry_of(key: bytes, value: bytes | None) -> Entry | None:
    if found := _REFERENCES.match(key):
        name = bytes.fromhex(found[1].decode()), int(found[2]), int(found[3])
        references = None if value is None else _references_of(value)
        if references is not None and references.transaction[2:] != name:
            raise DataDamaged(f"its value is about {references.transaction}")
        return ReferencesEntry(*name, int(found[4]), references)
    if found := _NOTE.match(key):
        producer_id = bytes.fromhex(found[1].decode())
        note = None if value is None else _note_of(value)
        if note is not None and note.transaction.producer_id != producer_id:
            raise DataDamaged(f"its value is about {note.transaction}")
        return NoteEntry(producer_id, note)
    if found := _ID.match(key):
        return IdEntry(found[1].decode(), None if value is None else _id_of(value))
    return None


def _state_of(number: int) -> State:
    try:
        return State(number)
    except ValueError:
        raise FormatNotSupported(f"state {number} is not known; upgrade this program") from None


def _producer_id_of(data: bytes) -> bytes:
    if len(data) != PRODUCER_ID_BYTES:
        raise DataDamaged(f"a producer id has {PRODUCER_ID_BYTES} bytes, this one has {len(data)}")
    return data


def _id_to(known: IdValue) -> fmt.Id:
    return fmt.Id(
        version=CODEC.version,
        producer_id=known.producer_id,
        epoch=known.epoch,
        kind=fmt.Kind.Name(known.kind),
        timeout_ms=known.timeout_ms,
        changed_ms=known.changed_ms,
        number=known.number,
        state=fmt.State.Name(known.state),
        complete=known.complete,
        parts=[_part_to(part) for part in known.parts],
        missing=known.missing,
        check_group=known.check_group,
        checks=known.checks,
        former=_former_to(known.former),
        nonce=known.nonce,
        counted=known.counted,
        principal=known.principal,
        kept_ms=known.kept_ms,
        content=known.content,
        next_producer=known.next_producer,
    )


def _id_of(data: bytes) -> IdValue:
    stored = CODEC.value(fmt.Id, data)
    if int(stored.kind) not in list(map(int, Kind)):
        raise FormatNotSupported(f"kind {stored.kind} is not known; upgrade this program")
    return IdValue(
        producer_id=_producer_id_of(stored.producer_id),
        epoch=stored.epoch,
        kind=Kind(stored.kind),
        timeout_ms=stored.timeout_ms,
        changed_ms=stored.changed_ms,
        number=stored.number,
        state=_state_of(stored.state),
        complete=stored.complete,
        parts=tuple(_part_of(part) for part in stored.parts),
        missing=tuple(stored.missing),
        check_group=stored.check_group,
        checks=stored.checks,
        former=_former_of(stored.former) if stored.HasField("former") else None,
        nonce=stored.nonce,
        counted=stored.counted,
        principal=stored.principal,
        kept_ms=stored.kept_ms,
        content=stored.content,
        next_producer=_producer_id_of(stored.next_producer) if stored.next_producer else b"",
    )


def _former_to(former: Former | None) -> fmt.Former | None:
    if former is None:
        return None
    state = fmt.State.Name(former.state)
    return fmt.Former(epoch=former.epoch, number=former.number, state=state, content=former.content)


def _former_of(stored: fmt.Former) -> Former:
    return Former(stored.epoch, stored.number, _state_of(stored.state), stored.content)


def _references_to(value: ReferencesValue) -> fmt.References:
    return fmt.References(
        version=CODEC.version,
        transaction=_transaction_to(value.transaction),
        staged_ms=value.staged_ms,
        principal=value.principal,
        references=[
            fmt.Reference(
                branch=reference.stream.branch,
                topic_id=reference.stream.topic_id,
                partition=reference.stream.partition,
                sequence=reference.sequence,
                offset=reference.offset,
                record_count=reference.record_count,
                length=reference.length,
                crc=reference.crc,
                timestamp_min_us=reference.timestamp_min_us,
                timestamp_max_us=reference.timestamp_max_us,
            )
            for reference in value.references
        ],
    )


def _references_of(data: bytes) -> ReferencesValue:
    stored = CODEC.value(fmt.References, data)
    references = tuple(
        Reference(
            stream=Stream(reference.branch, reference.topic_id, reference.partition),
            sequence=reference.sequence,
            offset=reference.offset,
            record_count=reference.record_count,
            length=reference.length,
            crc=reference.crc,
            timestamp_min_us=reference.timestamp_min_us,
            timestamp_max_us=reference.timestamp_max_us,
        )
        for reference in stored.references
    )
    if not references:
        raise DataDamaged("the value has no references")
    return ReferencesValue(_transaction_of(stored.transaction), stored.staged_ms, references, stored.principal)


def _note_to(note: NoteValue) -> fmt.Note:
    return fmt.Note(
        version=CODEC.version,
        transaction=_transaction_to(note.transaction),
        outcome=fmt.State.Name(note.outcome),
        finished=note.finished,
        part=None if note.part is None else _part_to(note.part),
        copied=_counts_to(note.copied),
    )


def _note_of(data: bytes) -> NoteValue:
    stored = CODEC.value(fmt.Note, data)
    part = _part_of(stored.part) if stored.HasField("part") else None
    if part is None and not stored.finished:
        raise DataDamaged("a note that is not finished does not say what the decision counts")
    return NoteValue(
        _transaction_of(stored.transaction), _state_of(stored.outcome), stored.finished, part, _counts_of(stored.copied)
    )


def _transaction_to(transaction: Transaction) -> fmt.Transaction:
    return fmt.Transaction(
        transactional_id=transaction.transactional_id,
        coordinator=transaction.coordinator,
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        number=transaction.number,
    )


def _transaction_of(stored: fmt.Transaction) -> Transaction:
    return Transaction(
        stored.transactional_id,
        stored.coordinator,
        _producer_id_of(stored.producer_id),
        stored.epoch,
        stored.number,
    )


def digest_of(parts: Iterable[Part]) -> bytes:
    """Return a digest of what a decision counts; equal parts have equal digests."""
    data = fmt.Id(parts=[_part_to(part) for part in parts]).SerializeToString(deterministic=True)
    return sha256(data).digest()[:DIGEST_BYTES]


def _part_to(part: Part) -> fmt.Part:
    return fmt.Part(bundle=part.bundle, counts=_counts_to(part.counts), groups=part.groups)


def _part_of(stored: fmt.Part) -> Part:
    return Part(stored.bundle, _counts_of(stored.counts), tuple(stored.groups))


def _counts_to(counts: Mapping[Stream, int]) -> list[fmt.Count]:
    return [
        fmt.Count(branch=stream.branch, topic_id=stream.topic_id, partition=stream.partition, batches=batches)
        for stream, batches in sorted(counts.items())
    ]


def _counts_of(stored: Iterable[fmt.Count]) -> dict[Stream, int]:
    return {Stream(count.branch, count.topic_id, count.partition): count.batches for count in stored}
