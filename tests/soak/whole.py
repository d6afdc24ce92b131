"""After a soak: is each transaction whole or absent, as its program was told, and was each record of
the source moved once?

Both compare counters, since records of transactions have offsets that their programs do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.chaos.transaction_judge import Attempt
from tests.judges import all_or_nothing
from tests.judges.violation import Violation
from tests.soak.numbered import Partition, Run, differences, joined
from tests.soak.transactor import MOVED, SOURCE, counters_of

Stream = Mapping[Partition, list[Run]]


def counters_in(runs: list[Run]) -> list[Run]:
    """Runs of counters, in place of offsets; a counter that is there twice is there once."""
    found: list[Run] = []
    for first, last in sorted((run.first + run.shift, run.last + run.shift) for run in runs):
        new = max(first, found[-1].last + 1) if found else first
        if new <= last:
            found.append(Run(new, last, 0))
    return joined(found)


def runs_sent(attempt: Attempt) -> Iterator[tuple[Partition, int, int]]:
    """The partition, and the first and last counter, of each batch of a transaction."""
    for value, partition in attempt.places.items():
        first, end = counters_of(value)
        yield partition, first, end - 1


def judge_whole(transactions: Iterable[Attempt], stream: Stream) -> list[Violation]:
    counters = {partition: counters_in(runs) for partition, runs in stream.items()}
    violations: list[Violation] = []
    for attempt in transactions:
        sent = list(runs_sent(attempt))
        count = sum(last + 1 - first for _, first, last in sent)
        shown = sum(_shown(counters.get(partition, []), first, last) for partition, first, last in sent)
        what = f"{shown} of {count} records are there"
        violations += all_or_nothing.judge_whole(attempt.sent.client, attempt.sent.told, shown, count, what)
    return violations


def _shown(known: Iterable[Run], first: int, last: int) -> int:
    return sum(max(0, min(run.last, last) + 1 - max(run.first, first)) for run in known)


def judge_moved(stream: Stream) -> list[Violation]:
    """The target holds the records of the source, and nothing else."""
    violations = []
    for topic, number in stream:
        if topic == MOVED:
            source, moved = (counters_in(stream.get((name, number), [])) for name in (SOURCE, MOVED))
            for kind, some, others in (("not moved", source, moved), ("never sent", moved, source)):
                violations += [
                    Violation(kind, f"{(topic, number)}: counters: {problem}") for problem in differences(some, others)
                ]
    return violations
