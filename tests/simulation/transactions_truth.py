"""Derive the truth about transactions from the watched store: what was staged, what was decided,
and what became visible, each with the moment at which it was stored. The words are Jepsen's where
it has one.

aborted read            a record of a transaction is visible that was never committed
early read              a record was visible before its transaction's decision was stored
torn transaction        a transaction is committed, and a record of it is missing
lost write              a decision counts a record that is not visible
not counted             a record is visible that the decision of its transaction left out
duplicate               a record is visible twice
out of commit order     a transactional id's records stand in another order than its transactions
decision changed        a transaction was committed and then aborted, or the other way round
told another outcome    a client received another outcome than the log has
broken promise          a branch was prepared, no client asked to roll it back, and it is not committed
staged when over        a batch was staged, or carried forward, for a transaction that its bundle had completed
processed twice         a message of the input has two records in an output
offset without records  the committed offset is behind a message that has no record in an output
records without offset  a message has a record, and the committed offset is not behind it
hanging transaction     something is staged, pending or incomplete when all has come to rest
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ledgermq.protocol.limits import DELAYED_BRANCH
from ledgermq.protocol.naming import unresolved
from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as stored
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.judges.all_or_nothing import judge_whole
from tests.judges.order import Step, backwards
from tests.judges.violation import Violation
from tests.simulation.history import Partition
from tests.simulation.stored_segments import StoredBatch
from tests.simulation.watch import WatchedStore

COMMITS = (stored.COMMITTED, stored.COMMITTED_BY_OPERATOR)
ABORTS = (stored.ABORTED, stored.ABORTED_BY_OPERATOR, stored.UNRESOLVED)


class Named(NamedTuple):
    transactional_id: str
    producer_id: bytes
    epoch: int
    number: int


class StagedAt(NamedTuple):
    """The stream of a staged batch, in its bundle, and its number there."""

    stream: tuple[int, bytes, int, int]
    sequence: int


class Seen(NamedTuple):
    """`moment`: the place of its segment among all objects that were ever stored."""

    partition: Partition
    offset: int
    moment: int


@dataclass
class Sent:
    """A transaction as its client knows it. `told`: True committed, False aborted, None not known."""

    client: str
    transactional_id: str
    values: list[str] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    told: bool | None = None
    prepared: bool = False
    """`tpc_prepare` has returned."""
    rollback_asked: bool = False
    rests_until_s: float = 0.0
    """No client ends it before, by the loop's time."""

    @property
    def promised(self) -> bool:
        return self.prepared and not self.rollback_asked


@dataclass
class TransactionTruth:
    staged: dict[str, Named] = field(default_factory=dict)
    """value -> the transaction that staged it"""
    places: dict[str, StagedAt] = field(default_factory=dict)
    counts: dict[Named, dict[tuple[int, bytes, int, int], int]] = field(default_factory=dict)
    """committed transaction -> (bundle, branch, topic id, partition) -> batches that the decision counts"""
    decided: dict[Named, tuple[int, int]] = field(default_factory=dict)
    """transaction -> (state, moment of the decision)"""
    visible: defaultdict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    copies: defaultdict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    """of half messages, for operators"""
    repeatable: frozenset[str] = frozenset()
    """values of copies that may be there again: the ledger had forgotten their sessions"""
    checks: dict[Named, int] = field(default_factory=dict)
    """half message -> how often its programs had been asked when it was decided"""
    dropped: dict[str, int] = field(default_factory=dict)
    """producer id in hex -> moment at which something was last staged of it no longer"""
    open: set[str] = field(default_factory=set)
    """keys that say that something is not over"""
    notes: dict[tuple[int, str], tuple[int, int]] = field(default_factory=dict)
    """(partition, producer id in hex) -> epoch and number of the newest transaction that the bundle has completed"""
    carried: int = 0
    """batches that were staged again under the same key"""
    violations: list[Violation] = field(default_factory=list)

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))


class StoredIn(NamedTuple):
    """A valid segment, and the moment from which it counts."""

    moment: int
    index: fmt.SegmentIndex
    batches: list[StoredBatch]


def transaction_truth(store: WatchedStore, bundles: Iterable[int], names: Mapping[int, str]) -> TransactionTruth:
    """`names`: of all topics that there ever were, by id."""
    truth = TransactionTruth()
    staged_values: dict[tuple[int, int], list[str]] = {}
    for segment in valid_segments(store, bundles):
        for batch in segment.batches:
            name = names.get(batch.topic_id, "")
            if name == keys.STAGED_TOPIC:
                staged_values[batch.partition, batch.base_offset] = _texts(batch)
            elif not keys.is_internal(name):
                shown = truth.copies if name.endswith(unresolved.SUFFIX) else truth.visible
                for offset, value in enumerate(_texts(batch), batch.base_offset):
                    seen = Seen((f"{name}#{batch.topic_id}", batch.partition), offset, segment.moment)
                    shown[value].append(seen)
        for batch in segment.batches:
            if names.get(batch.topic_id) == keys.TRANSACTIONS_TOPIC:
                _take_records(truth, batch.partition, _rows(batch), segment.moment, staged_values)
            elif names.get(batch.topic_id) == keys.OFFSETS_TOPIC:
                _note_open(truth, f"{batch.partition}/", "pending/", _rows(batch))
    return truth


def valid_segments(store: WatchedStore, bundles: Iterable[int]) -> Iterator[StoredIn]:
    """Each ledger in its order. A segment counts from the moment at which all below it were there too."""
    for bundle in bundles:
        moment = 0
        for segment in store.history(bundle):
            moment = max(moment, segment.moment)
            if segment.valid:
                yield StoredIn(moment, segment.index, segment.batches)


def _take_records(
    truth: TransactionTruth,
    partition: int,
    rows: list[tuple[str, bytes | None]],
    moment: int,
    staged: Mapping[tuple[int, int], list[str]],
) -> None:
    _note_open(truth, f"{partition}/", "ref/", rows)
    for key, value in rows:
        if key.startswith("ref/") and value is None:
            truth.dropped[key.split("/")[1]] = moment
        elif key.startswith("ref/") and value is not None:
            _judge_alive(truth, partition, key)
            _take_references(truth, partition, stored.References.FromString(value), staged)
        elif key.startswith("id/"):
            truth.open.discard(f"{partition}/{key}")
            if value is not None:
                _take_id(truth, f"{partition}/{key}", key.removeprefix("id/"), stored.Id.FromString(value), moment)
        elif key.startswith("done/"):
            truth.open.discard(f"{partition}/{key}")
            _take_note(truth, partition, key, None if value is None else stored.Note.FromString(value))


def _take_note(truth: TransactionTruth, partition: int, key: str, note: stored.Note | None) -> None:
    producer = partition, key.removeprefix("done/")
    if note is None:
        truth.notes.pop(producer, None)
    elif note.finished:
        truth.notes[producer] = (note.transaction.epoch, note.transaction.number)
    else:
        truth.open.add(f"{partition}/{key}")


def _judge_alive(truth: TransactionTruth, partition: int, key: str) -> None:
    """Nothing is staged of what the bundle's note says is over (X15)."""
    _, producer, epoch, number, _ = key.split("/")
    over = truth.notes.get((partition, producer))
    if over is not None and (int(epoch), int(number)) <= over:
        truth.report("staged when over", f"{key} in partition {partition}, which has completed {over}")


def _take_references(
    truth: TransactionTruth,
    partition: int,
    references: stored.References,
    staged: Mapping[tuple[int, int], list[str]],
) -> None:
    named = references.transaction
    transaction = Named(named.transactional_id, named.producer_id, named.epoch, named.number)
    for reference in references.references:
        for value in staged[partition, reference.offset]:
            if truth.staged.setdefault(value, transaction) != transaction:
                truth.report("staged twice", f"{value} is of {truth.staged[value]} and of {transaction}")
            stream = (partition + 1, reference.branch, reference.topic_id, reference.partition)
            truth.carried += value in truth.places
            truth.places[value] = StagedAt(stream, reference.sequence)


def _take_id(truth: TransactionTruth, key: str, name: str, known: stored.Id, moment: int) -> None:
    if known.state == stored.PREPARED or (known.number and not known.complete):
        truth.open.add(key)
    if not known.number or known.state not in (*COMMITS, *ABORTS):
        return
    transaction = Named(name, known.producer_id, known.epoch, known.number)
    if known.state in COMMITS and known.parts and transaction not in truth.decided:
        truth.counts[transaction] = {
            (part.bundle, count.branch, count.topic_id, count.partition): count.batches
            for part in known.parts
            for count in part.counts
        }
    truth.checks.setdefault(transaction, known.checks)
    before = truth.decided.setdefault(transaction, (known.state, moment))
    if (before[0] in COMMITS) != (known.state in COMMITS):
        truth.report("decision changed", f"{transaction}: {before[0]}, then {known.state}")


def _note_open(truth: TransactionTruth, where: str, prefix: str, rows: list[tuple[str, bytes | None]]) -> None:
    for key, value in rows:
        if key.startswith(prefix):
            (truth.open.discard if value is None else truth.open.add)(where + key)


def _rows(batch: StoredBatch) -> list[tuple[str, bytes | None]]:
    return [((key or b"").decode(), value) for key, value in batch.rows]


def _texts(batch: StoredBatch) -> list[str]:
    return [value.decode() if value is not None else "" for value in batch.values]


def judge(truth: TransactionTruth, sent: Iterable[Sent]) -> list[Violation]:
    """All or nothing, once, in commit order, and not before the commit point."""
    for seen, value, transaction in _places(truth):
        state, moment = truth.decided.get(transaction, (stored.UNDECIDED, 0))
        if state not in COMMITS:
            truth.report(
                "aborted read", f"{value} is visible at {seen.partition} {seen.offset}; {transaction}: {state}"
            )
        elif seen.moment <= moment:
            truth.report("early read", f"{value} of {transaction} was visible before it was committed")
    _judge_counted(truth)
    return judge_visible(truth, sent)


def judge_visible(truth: TransactionTruth, sent: Iterable[Sent]) -> list[Violation]:
    """What clients alone can say: whole or absent as they were told, once, in commit order."""
    steps = (
        Step((one.producer_id, seen.partition), (one.epoch, one.number), f"{value} of {one}")
        for seen, value, one in _places(truth)
        if not is_delayed(truth, value)  # those come in the order of due times
    )
    for step, before in backwards(steps):
        truth.report("out of commit order", f"{step.what} stands behind {before.what}, of {before.place}")
    for value, places in truth.visible.items():
        if len(places) > 1 and value in truth.staged:
            truth.report("duplicate", f"{value} is visible at {places}")
    for transaction in sent:
        _judge_sent(truth, transaction)
    return truth.violations


def is_delayed(truth: TransactionTruth, value: str) -> bool:
    """Return whether a record of a transaction was sent as a timed message."""
    place = truth.places.get(value)
    return place is not None and place.stream[1].endswith(DELAYED_BRANCH)


def _places(truth: TransactionTruth) -> list[tuple[Seen, str, Named]]:
    """Where records of transactions are visible, each partition in its order."""
    ours = ((seen, value) for value, places in truth.visible.items() if value in truth.staged for seen in places)
    return [(seen, value, truth.staged[value]) for seen, value in sorted(ours)]


PROCESSED = "processed"


def processed_as(output: str, partition: int, offset: int) -> str:
    """Return how the values begin that a member writes to an output for one message of its input."""
    return f"{PROCESSED}/{output}/{partition}/{offset}"


def judge_processed(
    visible: Iterable[str], committed: Mapping[int, int], outputs: Iterable[str]
) -> Iterator[Violation]:
    """Each message below the committed offset has one record in each output, and none above has.

    `visible`: values of all records. `committed`: by partition of the input.
    """
    processed = Counter(value.rsplit("/", 1)[0] for value in visible if value.startswith(f"{PROCESSED}/"))
    outputs = tuple(outputs)
    expected = {
        processed_as(output, number, offset)
        for number, end in committed.items()
        for offset in range(end)
        for output in outputs
    }
    for value in sorted(processed.keys() | expected):
        if processed[value] != (value in expected):
            kind = "processed twice" if processed[value] > 1 else "offset without records"
            kind = kind if value in expected else "records without offset"
            yield Violation(kind, f"{value}: {processed[value]} times visible, committed are {dict(committed)}")


def _judge_counted(truth: TransactionTruth) -> None:
    """What a commit counts is visible, and nothing else of the transaction."""
    for value, transaction in truth.staged.items():
        stream, sequence = truth.places[value]
        is_counted = sequence < truth.counts.get(transaction, {}).get(stream, 0)
        if is_counted and not truth.visible.get(value):
            truth.report("lost write", f"{value} of {transaction} was committed, and is not visible")
        elif not is_counted and truth.visible.get(value) and transaction in truth.counts:
            truth.report("not counted", f"{value} of {transaction} is visible, though the commit left it out")


def _judge_sent(truth: TransactionTruth, sent: Sent) -> None:
    """What a client sent in one transaction is there as a whole, or not at all."""
    if not sent.values:
        return
    missing = [value for value in sent.values if not truth.visible.get(value)]
    shown, count = len(sent.values) - len(missing), len(sent.values)
    what = f"{missing} of {sent.values} are not visible"
    truth.violations += judge_whole(sent.client, sent.told, shown, count, what, promised=sent.promised)
