"""The checks of a client, each a trouble that its program meets and what has to come out nevertheless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from grpc import StatusCode

import ledgermq
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner, ResourceExhausted, Unavailable
from ledgermq_tools.conformance import queue_checks as queues
from ledgermq_tools.conformance import transaction_checks as transactions
from ledgermq_tools.conformance.brokers.cluster import Cluster
from ledgermq_tools.conformance.brokers.faults import (
    Damaged,
    Elsewhere,
    Fault,
    Late,
    LostAnswer,
    LostRequest,
    Refused,
    Stale,
    Twice,
)
from ledgermq_tools.conformance.membership_checks import goes_on, loses_answers, reads_all, shares
from ledgermq_tools.conformance.program import Program
from ledgermq_tools.conformance.trial import Trial, compared, watch_of

COUNT = 30
WAIT_MS = 400
CLOCK = timedelta(hours=1)
"""How far a client's clock may be from ours."""
CIRCLE_S = 2.0
CIRCLE_CALLS_MAX = 30
"""Three redirects at once, and a pause of 50 ms or more before each further one, make ten."""
REPEATS_MAX = 3
"""Calls that a client may make before it tells its caller of an answer that is from no broker."""


@dataclass(frozen=True, slots=True)
class Check:
    """`name` and `trouble` are for people. `run` notes what it finds in the trial."""

    level: int
    name: str
    trouble: str
    run: Callable[[Trial], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Result:
    level: int
    check: str
    passed: bool
    findings: tuple[str, ...]


async def check_client(program: Program, checks: Sequence[Check], on_result: Callable[[Result], None]) -> list[Result]:
    """Run the checks, one after the other. Raises OSError if the program cannot be started."""
    cluster = Cluster(watch_of(1))
    results = []
    async with cluster.running() as client:
        for number, check in enumerate(checks):
            trial = Trial(number, check.level, cluster, client, program)
            await trial.begin()
            await check.run(trial)
            trial.find(*trial.judge.findings)
            results.append(Result(check.level, check.name, not trial.findings, tuple(trial.findings)))
            on_result(results[-1])
    return results


async def _produce(trial: Trial, faults: Sequence[Fault | None] = (), *, owned: bool = True) -> list[ledgermq.Message]:
    """Let the program store the numbers up to COUNT, in three calls; return what is stored."""
    partition = await trial.partition(owned=owned)
    trial.plan({"ProduceOnce": faults})
    for first in range(0, COUNT, COUNT // 3):
        done = await trial.program.run("produce", trial.address, trial.topic, partition, first, COUNT // 3)
        trial.find(done.problem)
    stored = await trial.stored(partition)
    trial.find(*compared([_text(each.value) for each in stored], [*map(str, range(COUNT))], "stored"))
    return stored


async def _fetch(trial: Trial, partition: int, first: int, values: Sequence[str]) -> None:
    """Let the program fetch from an offset on; it has to print these values."""
    done = await trial.program.run("fetch", trial.address, trial.topic, partition, first, len(values))
    trial.find(done.problem)
    wanted = [f"{first + row} {value}" for row, value in enumerate(values)]
    trial.find(*compared(done.lines, wanted, "printed"))


async def _stores(trial: Trial) -> None:
    for each in await _produce(trial):
        if each.timestamp is None or abs(each.timestamp - datetime.now(UTC)) > CLOCK:
            trial.find(f"the timestamp {each.timestamp} is not the present time, in microseconds since 1970")
            return


async def _reads(trial: Trial) -> None:
    partition = await trial.partition(owned=True)
    values = [f"value {number}" for number in range(4 * 10)]
    for begin, compression in ((0, "none"), (10, "lz4"), (20, "zstd"), (30, "none")):
        await trial.write(partition, values[begin : begin + 10], compression=compression)
    for first in (0, 3, 17, 38):
        await _fetch(trial, partition, first, values[first:])


async def _finds_damage(trial: Trial) -> None:
    partition = await trial.partition(owned=True)
    values = [f"value {number}" for number in range(10)]
    await trial.write(partition, values, compression="none")
    trial.plan({"FetchOnce": [Damaged(b"value 5")]})
    done = await trial.program.run("fetch", trial.address, trial.topic, partition, 0, len(values))
    wrong = [line for line in done.lines if line not in {f"{row} {value}" for row, value in enumerate(values)}]
    if wrong:
        trial.find(f"printed a record that was damaged on its way: {wrong[0]!r}; compare CRC-32C of each batch")
    elif len(done.lines) == len(values) and not trial.judge.asked_for["FetchOnce"] > 1:
        trial.find("took a batch that was damaged on its way; compare CRC-32C of each batch")


async def _passes_expired(trial: Trial) -> None:
    partition = await trial.partition(owned=True)
    async with trial.client.producer() as producer:
        for value, ttl in (("kept", None), ("expired", 0.05), ("kept too", None)):
            await producer.send(trial.topic, value, partition=partition, ttl=ttl)
    await asyncio.sleep(0.2)
    done = await trial.program.run("fetch", trial.address, trial.topic, partition, 0, 2)
    trial.find(done.problem, *compared(done.lines, ["0 kept", "2 kept too"], "printed"))


async def _is_redirected(trial: Trial) -> None:
    await _produce(trial, owned=False)
    partition = await trial.partition(owned=False)
    await _fetch(trial, partition, 0, [*map(str, range(COUNT))])


async def _is_told_no_owner(trial: Trial) -> None:
    moving = NotOwner("the partition moves", retry_after_ms=100)
    moving.not_stored = True
    partition = await trial.partition(owned=True)
    trial.plan({"ProduceOnce": [Refused(moving), Refused(moving), None], "DescribeTopics": [Stale(), Stale()]})
    trial.find((await trial.program.run("produce", trial.address, trial.topic, partition, 0, COUNT)).problem)
    stored = [_text(each.value) for each in await trial.stored(partition)]
    trial.find(*compared(stored, [*map(str, range(COUNT))], "stored"))


async def _goes_in_circles(trial: Trial) -> None:
    partition = await trial.partition(owned=True)
    trial.plan({"ProduceOnce": [Elsewhere()] * 10_000})
    async with trial.program.running("produce", trial.address, trial.topic, partition, 0, COUNT) as running:
        await trial.wait_for(lambda: bool(trial.judge.asked_for["ProduceOnce"]) or running.ended)
        await asyncio.sleep(CIRCLE_S)
        asked = trial.judge.asked_for["ProduceOnce"]
        trial.plan({})
        await running.end()
    if asked > CIRCLE_CALLS_MAX:
        trial.find(f"followed {asked} redirects in {CIRCLE_S:.0f} s; pause after three in a row")
    trial.find(running.problem)
    stored = [_text(each.value) for each in await trial.stored(partition)]
    trial.find(*compared(stored, [*map(str, range(COUNT))], "stored"))


async def _tells_its_caller(trial: Trial) -> None:
    partition = await trial.partition(owned=True)
    trial.plan({"ProduceOnce": [LostRequest(StatusCode.UNIMPLEMENTED)] * 10_000})
    done = await trial.program.run("produce", trial.address, trial.topic, partition, 0, 1)
    asked = trial.judge.asked_for["ProduceOnce"]
    if not asked:
        trial.find(done.problem or "made no call of ProduceOnce, nor of Produce")
    elif not done.problem:
        trial.find("ended with status 0, though its batch was answered with UNIMPLEMENTED, by no broker")
    elif asked > REPEATS_MAX:
        trial.find(f"sent a batch {asked} times that was answered with UNIMPLEMENTED, by no broker: tell the caller")


def _planned(*faults: Fault | None) -> Callable[[Trial], Awaitable[None]]:
    async def run(trial: Trial) -> None:
        await _produce(trial, faults)
        trial.expect_met()

    return run


def _not_stored(error: LedgerMQError) -> Refused:
    error.not_stored = True
    return Refused(error)


async def _survives_the_owner(trial: Trial) -> None:
    partition = await trial.partition(owned=False)
    trial.plan({"ProduceOnce": [Late(0.5)] * 3})
    async with trial.program.running("produce", trial.address, trial.topic, partition, 0, COUNT) as running:
        await trial.lose_owner(running, "ProduceOnce")
        await running.end()
    trial.find(running.problem)
    stored = [_text(each.value) for each in await trial.stored(partition)]
    trial.find(*compared(stored, [*map(str, range(COUNT))], "stored"))
    await trial.restore()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")


CHECKS = (
    Check(1, "produce", "none", _stores),
    Check(1, "fetch", "batches of each compression; offsets in the middle of a batch", _reads),
    Check(1, "damaged batch", "a byte of a fetched batch differs", _finds_damage),
    Check(1, "expired record", "a record whose time to live is over", _passes_expired),
    Check(1, "no broker", "each batch is answered with UNIMPLEMENTED, without the trailer", _tells_its_caller),
    Check(2, "another owner", "the address is of a broker that does not own the partition", _is_redirected),
    Check(2, "no owner", "the owner moves and is not named; DescribeTopics is out of date", _is_told_no_owner),
    Check(2, "circle", "two brokers name each other as the owner for a while", _goes_in_circles),
    Check(
        2,
        "refused for a while",
        f"a broker is full, and asks for {WAIT_MS} ms; then its store does not answer",
        _planned(
            _not_stored(ResourceExhausted("the broker is full", retry_after_ms=WAIT_MS)),
            None,
            _not_stored(Unavailable("the store does not answer", retry_after_ms=WAIT_MS)),
        ),
    ),
    Check(2, "lost request", "the line breaks before a batch arrives", _planned(LostRequest(), None, LostRequest())),
    Check(
        2,
        "lost answer",
        "a batch is stored, and the line breaks before the answer",
        _planned(LostAnswer(), LostAnswer(), None, LostAnswer()),
    ),
    Check(
        2,
        "lost status",
        "a line breaks before or after a batch is stored, and the call ends with INTERNAL, UNKNOWN, CANCELLED or"
        " RESOURCE_EXHAUSTED, without the trailer",
        _planned(
            LostAnswer(StatusCode.INTERNAL),
            LostAnswer(StatusCode.UNKNOWN),
            None,
            LostRequest(StatusCode.INTERNAL),
            LostRequest(StatusCode.UNKNOWN),
            LostAnswer(StatusCode.CANCELLED),
            LostAnswer(StatusCode.RESOURCE_EXHAUSTED),
        ),
    ),
    Check(2, "twice", "the network repeats each batch", _planned(Twice(), Twice(), Twice())),
    Check(2, "late answer", "answers come a second late", _planned(Late(1), None, Late(1))),
    Check(2, "killed owner", "the owner of the partition ends; another broker takes over", _survives_the_owner),
    Check(3, "member", "none", reads_all),
    Check(3, "committed", "a group goes on where it committed", goes_on),
    Check(3, "lost heartbeat", "answers to heartbeats and commits are lost", loses_answers),
    Check(3, "two members", "another member joins, and leaves", shares),
    Check(4, "queue", "none", queues.finishes_all),
    Check(4, "leased batch", "another member has leased some messages of a batch", queues.leaves_others),
    Check(4, "lost lease calls", "requests for messages, and answers about them, are lost", queues.loses_answers),
    Check(4, "killed lessor", "the broker that leased messages ends", queues.survives_an_owner),
    Check(5, "commit", "none", transactions.commits),
    Check(5, "abort", "a transaction is aborted before the next one", transactions.aborts),
    Check(5, "lost transaction calls", "answers are lost, of each of the three calls", transactions.loses_answers),
    Check(5, "staged twice", "the network repeats what is staged, and the decision", transactions.comes_twice),
    Check(5, "fenced", "another process begins to use the transactional id", transactions.is_fenced),
    Check(5, "killed stager", "the owner of a partition ends while batches are staged", transactions.survives_an_owner),
)
"""In the order of their levels."""


def chosen(levels: Sequence[int], names: Sequence[str]) -> list[Check]:
    """Return the checks of these levels with these names; none given: all. Raises InvalidRequest."""
    if unknown := set(names) - {check.name for check in CHECKS}:
        raise InvalidRequest(f"there is no check {min(unknown)!r}: {', '.join(check.name for check in CHECKS)}")
    return [check for check in CHECKS if (not levels or check.level in levels) and (not names or check.name in names)]
