"""Judge a history by the final logs. The words are Jepsen's where it has one.

lost write              acknowledged or read, and not in the final log at that offset
inconsistent offsets    one offset showed two values
duplicate               a value that must be stored once is there twice
failed write stored     a send that was answered "did not happen" is in the log
phantom                 a value that no client sent (yet)
gap                     the final log is not dense
reordered               one client's ordered sends are stored in another order
stale append, stale end, end above the log      not linearizable, see `model`
poll skip, non-monotonic poll                   a reader passed over a record, or went back
unseen                  acknowledged, and not returned to a reader who read to the end
parquet gap, parquet doubled, live file missing plain readers do not see one gapless run
read after removal      a deleted topic was read or appended to after its deletion had been confirmed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tests.judges.nothing_doubled import doubled
from tests.judges.nothing_lost import missing, unseen
from tests.judges.order import Step, backwards
from tests.judges.plain_parquet import judge_files
from tests.judges.violation import Violation
from tests.simulation.history import (
    AskEnd,
    Assign,
    FinalLog,
    Gone,
    History,
    LogStart,
    Outcome,
    Partition,
    PlainRead,
    Poll,
    Produce,
    Produced,
    ToldEnd,
)
from tests.simulation.model import PartitionModel


def check(
    history: History, logs: Mapping[Partition, FinalLog], drained: Iterable[tuple[str, Partition]] = ()
) -> list[Violation]:
    """`logs`: what was ever durable.

    `drained`: readers who read a partition to its end after everything had come to rest.
    """
    judge = _Judge(logs)
    for event in history:
        judge.take(event)
    return judge.conclude(drained)


class _Judge:
    def __init__(self, logs: Mapping[Partition, FinalLog]) -> None:
        self._models = {partition: PartitionModel(partition, log) for partition, log in sorted(logs.items())}
        self._of_op: dict[int, PartitionModel] = {}
        self._gone: set[str] = set()
        self._violations: list[Violation] = []

    def model(self, partition: Partition) -> PartitionModel:
        if partition not in self._models:
            self._models[partition] = PartitionModel(partition, FinalLog({}))
        return self._models[partition]

    def take(self, event: object) -> None:
        match event:
            case Produce():
                self._of_op[event.op] = self.model(event.partition)
                self._of_op[event.op].produce(event)
            case Produced():
                self._of_op[event.op].produced(event)
            case AskEnd():
                self._of_op[event.op] = self.model(event.partition)
                self._of_op[event.op].ask_end(event)
            case ToldEnd():
                self._of_op[event.op].told_end(event)
            case Assign():
                self.model(event.partition).assign(event.reader, event.offset)
            case Poll():
                self._not_gone(event)
                self.model(event.partition).poll(event)
            case LogStart():
                model = self.model(event.partition)
                model.log_start = max(model.log_start, event.offset)
            case PlainRead():
                self._violations += judge_plain_read(event)
            case Gone():
                self._gone.add(event.topic)

    def conclude(self, drained: Iterable[tuple[str, Partition]]) -> list[Violation]:
        for model in self._models.values():
            _judge_log(model)
            _judge_unheard(model)
            _judge_order(model)
        for reader, partition in drained:
            model = self.model(partition)
            known = max(model.known_end, model.log.log_start)
            if unseen(model.position(reader), known, model.log.log_start):
                model.report(
                    "unseen",
                    f"{reader} read to {model.position(reader)} and found no more; {known} was known to be the end",
                )
        return self._violations + [violation for model in self._models.values() for violation in model.violations]

    def _not_gone(self, event: Poll) -> None:
        if event.partition[0] in self._gone:
            self._violations.append(
                Violation("read after removal", f"{event.reader} got {event.records[0]} of {event.partition[0]}")
            )


def _judge_log(model: PartitionModel) -> None:
    records = model.log.records
    stored = ((offset, offset) for offset in sorted(records))
    for gap in missing(stored, model.log.judged_from, model.log.end)[:1]:
        model.report("gap", f"offset {gap[0]} is not there, the log ends at {model.log.end}")
    twice = doubled(records)
    for value in dict.fromkeys(records.values()):
        send = model.sender.get(value)
        if send is None:
            model.report("phantom", f"{value!r} is stored, and no producer sent it")
        elif value in twice and send.once:
            model.report("duplicate", f"{value!r} of {send.client} is stored at {twice[value]}")
        if send is not None and (told := model.outcomes.get(send.op)) is not None and told.outcome is Outcome.FAIL:
            model.report("failed write stored", f"{value!r} of {send.client} is stored; it was told {told.why!r}")


def _judge_unheard(model: PartitionModel) -> None:
    """A record without an answer has its place in the order too: behind every end that was known
    when it was sent.
    """
    for offset, value in model.log.records.items():
        send = model.sender.get(value)
        told = model.outcomes.get(send.op) if send is not None else None
        if send is None or (told is not None and told.outcome is Outcome.OK):
            continue
        least = model.sent_at_least[send.op]
        if offset < least:
            model.report(
                "stale append",
                f"{value!r} of {send.client} is stored at {offset}; {least} was the end before it was sent",
            )


def _judge_order(model: PartitionModel) -> None:
    first_at: dict[str, int] = {}
    for offset, value in model.log.records.items():
        first_at[value] = min(offset, first_at.get(value, offset))
    steps = (
        Step(send.client, first_at[value], value)
        for send in model.sends.values()
        if send.ordered
        for value in send.values
        if value in first_at
    )
    for step, before in backwards(steps):
        model.report(
            "reordered",
            f"{step.who} sent {step.what!r} after {before.what!r}, stored at {step.place} before {before.place}",
        )


def judge_plain_read(read: PlainRead) -> list[Violation]:
    return judge_files(f"{read.partition[0]}-{read.partition[1]}", read.files, read.live)
