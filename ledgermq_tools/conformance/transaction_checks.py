"""The checks of a client that makes records of several partitions visible at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from grpc import StatusCode

from ledgermq.errors import Unavailable
from ledgermq_tools.conformance.brokers.faults import Fault, Late, LostAnswer, LostRequest, Refused, Twice
from ledgermq_tools.conformance.trial import Trial, compared

COUNT = 30
OURS = "ours"


async def commits(trial: Trial) -> None:
    """Records of two partitions with two owners become visible, each once and in order."""
    await _commit(trial, {})


async def aborts(trial: Trial) -> None:
    """Records of a transaction that is aborted are never visible; those of the next one are."""
    places = await _partitions(trial)
    await _run(trial, "abort", 0, places)
    await _run(trial, "commit", COUNT, places)
    await _expect_visible(trial, places, range(COUNT, 2 * COUNT))


def troubled(faults: Mapping[str, Sequence[Fault | None]]) -> Callable[[Trial], Awaitable[None]]:
    async def run(trial: Trial) -> None:
        await _commit(trial, faults)
        trial.expect_met()

    return run


loses_answers = troubled(
    {
        "InitTransactions": [LostAnswer()],
        "Stage": [LostRequest(), LostAnswer(), Refused(Unavailable("the broker is busy", retry_after_ms=100))],
        "EndTransaction": [LostAnswer(StatusCode.INTERNAL), LostRequest(StatusCode.UNKNOWN)],
    }
)
comes_twice = troubled({"Stage": [Twice(), Twice()], "EndTransaction": [Twice()]})


async def is_fenced(trial: Trial) -> None:
    """Another process begins to use the id: the program's transaction must not be committed, and it has to fail."""
    places = await _partitions(trial)
    name = trial.group()
    trial.plan({"Stage": [Late(2.0)] * 4})
    async with trial.program.running("transaction", *_task(trial, name, "commit", 0, places)) as running:
        await trial.wait_for(lambda: bool(trial.judge.asked_for["Stage"]) or running.ended)
        async with trial.client.transactions(name) as ours, ours.begin() as transaction:
            for partition in places:
                transaction.send(trial.topic, OURS, partition=partition)
        await running.end()
    if not running.problem:
        trial.find("ended with status 0, though another process had taken its transactional id")
    for partition in places:
        trial.find(*compared(await _visible(trial, partition, 1), [OURS], "visible"))


async def survives_an_owner(trial: Trial) -> None:
    """The owner of a partition ends while batches are staged there."""
    places = await _partitions(trial)
    trial.plan({"Stage": [Late(0.5)] * 3})
    async with trial.program.running("transaction", *_task(trial, trial.group(), "commit", 0, places)) as running:
        await trial.lose_owner(running, "Stage")
        await running.end()
    trial.find(running.problem)
    await _expect_visible(trial, places, range(COUNT))
    await trial.restore()


async def _commit(trial: Trial, faults: Mapping[str, Sequence[Fault | None]]) -> None:
    places = await _partitions(trial)
    trial.plan(faults)
    await _run(trial, "commit", 0, places)
    await _expect_visible(trial, places, range(COUNT))


async def _partitions(trial: Trial) -> list[int]:
    return [await trial.partition(owned=True), await trial.partition(owned=False)]


def _task(trial: Trial, name: str, outcome: str, first: int, places: Sequence[int]) -> list[object]:
    return [trial.address, name, outcome, trial.topic, first, COUNT, *places]


async def _run(trial: Trial, outcome: str, first: int, places: Sequence[int]) -> None:
    done = await trial.program.run("transaction", *_task(trial, trial.group(), outcome, first, places))
    trial.find(done.problem)


async def _expect_visible(trial: Trial, places: Sequence[int], numbers: Sequence[int]) -> None:
    for place, partition in enumerate(places):
        wanted = [str(number) for row, number in enumerate(numbers) if row % len(places) == place]
        trial.find(*compared(await _visible(trial, partition, len(wanted)), wanted, "visible"))


async def _visible(trial: Trial, partition: int, count: int) -> list[str]:
    """Return the values of a partition, once there are so many: they come shortly after the commit."""

    async def enough() -> bool:
        return len(await trial.stored(partition)) >= count

    await trial.wait_for(enough)
    return [(each.value or b"").decode(errors="replace") for each in await trial.stored(partition)]
