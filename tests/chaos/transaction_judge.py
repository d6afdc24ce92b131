"""Judge transactions by the diaries of their programs, by what readers saw, and by what is stored at
the end. The rules and their words are the simulation's (`tests.simulation.transactions_truth`).

A transaction whose commit was never called must be absent: its program was killed, or fenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ledgermq
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_broker.transactions.stored.view import read_transactions
from ledgermq_ledger.open_root import cluster_of, opened
from ledgermq_tools.ledger.inspect.findings import Findings
from tests.chaos.workload import OUTPUTS
from tests.judges.violation import Violation
from tests.simulation.history import History, Outcome, Partition
from tests.simulation.transactions_truth import (
    Named,
    Seen,
    Sent,
    TransactionTruth,
    judge_processed,
    judge_visible,
)

LOOK_S = 1.0


@dataclass(slots=True)
class Attempt:
    """One transaction of a diary. `asked_ns`: when its commit was called; None: it was not."""

    named: Named
    sent: Sent
    places: dict[str, Partition]
    asked_ns: int | None = None


def attempts(diary: Path) -> list[Attempt]:
    """Return the transactions of one place, in their order."""
    found: dict[str, Attempt] = {}
    for line in diary.read_text().split("\n")[:-1] if diary.exists() else ():
        match line.split(" "):
            case [_, "sent", name, topic, number, value]:
                attempt = found.setdefault(name, _attempt(diary.stem, name))
                attempt.sent.values.append(value)
                attempt.places[value] = (topic, int(number))
            case [at, "committing", name]:
                found[name].asked_ns = int(at)
            case [_, "ended", name, outcome]:
                found[name].sent.told = outcome == "committed"
    for attempt in found.values():
        if attempt.asked_ns is None:
            attempt.sent.told = False
    return list(found.values())


def _attempt(client: str, name: str) -> Attempt:
    """Transactions of an id that was never forgotten are ordered by epoch and number."""
    transactional_id, epoch, number = name.rsplit(":", 2)
    named = Named(transactional_id, transactional_id.encode(), int(epoch), int(number))
    return Attempt(named, Sent(f"{client} {name}", transactional_id), {})


def add_sends(history: History, made: Iterable[Attempt]) -> None:
    """Put the records of transactions into a history, as sends whose place in it is not known: all
    before its first event.
    """
    before = len(history.events)
    for attempt in made:
        for value, partition in attempt.places.items():
            op = history.begin_produce(attempt.sent.client, partition, (value,), ordered=False)
            if attempt.sent.told is False:
                history.end_produce(op, Outcome.FAIL, why="aborted")
    history.events = history.events[before:] + history.events[:before]


def judge_transactions(
    made: Iterable[Attempt],
    parquet: Mapping[Partition, Mapping[int, str]],
    seen_ns: Mapping[str, int],
    committed: Mapping[int, int],
) -> list[Violation]:
    """`seen_ns`: when a reader saw each record first. `committed`: by partition of the input, the
    offset of the group that processes it.
    """
    made = list(made)
    truth = TransactionTruth()
    for partition, records in parquet.items():
        if partition[0] in OUTPUTS:
            for offset, value in records.items():
                truth.visible[value].append(Seen(partition, offset, 0))
    for attempt in made:
        truth.staged.update(dict.fromkeys(attempt.sent.values, attempt.named))
        for value in attempt.sent.values:
            if value in seen_ns and seen_ns[value] < (attempt.asked_ns or 2**63):
                truth.report("early read", f"{value} of {attempt.sent.client} was read before its commit was called")
    judge_visible(truth, (attempt.sent for attempt in made))
    return [*truth.violations, *judge_processed(truth.visible, committed, OUTPUTS)]


async def until_over(target: str, url: str, seconds_max: float) -> list[Violation]:
    """Wait, with brokers in good health and without programs, until no transaction is open and
    nothing is staged, and until the log start of what was staged is at its end.
    """
    left = "no answer"
    try:
        async with asyncio.timeout(seconds_max):
            while left := await _open(target) or await _staged(url):
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return [Violation("hanging transaction", f"after {seconds_max:.0f} s of health: {left}")]
    return []


async def _open(target: str) -> str:
    """Return what the cluster says is not over."""
    try:
        async with ledgermq.connect(target, timeout_s=20) as client:
            found = await client.transactions.list()
    except LedgerMQError as error:
        return str(error)
    names = [f"{one.transactional_id}:{one.epoch}:{one.number} {one.state}" for one in found.transactions]
    names += [f"staged in bundle {one.bundle}: {one.transactional_id}:{one.epoch}:{one.number}" for one in found.staged]
    names += [f"partition {number}: {error}" for number, error in found.unanswered.items()]
    return ", ".join(names[:5])


async def _staged(url: str) -> str:
    """Return what the root holds of transactions that is not over, or could be freed."""
    findings = Findings()
    async with opened(url, Sources()) as store:
        bundles = await read_transactions(store, await cluster_of(store), Sources(), findings.collecting)
    found = [f"{damage}" for damage in findings.all]
    for one in bundles:
        found += [f"bundle {one.bundle}: {staged}" for staged in one.state.all()]
        found += [f"bundle {one.bundle}: offsets of {pending}" for pending in one.offsets]
        found += [f"bundle {one.bundle}: {name} is incomplete" for name in one.ids.incomplete]
        if one.batches and max(one.batches) >= one.log_start:
            found.append(f"bundle {one.bundle}: offsets from {one.log_start} to {max(one.batches)} are not freed")
    return ", ".join(found[:5])
