"""The checks of a client as a member of queue groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grpc import StatusCode

import ledgermq
from ledgermq.errors import Unavailable, UnknownGroup
from ledgermq_tools.conformance.brokers.faults import Fault, Late, LostAnswer, LostRequest, Refused
from ledgermq_tools.conformance.trial import Trial, compared

VALUES = 40
LEASED = 4
"""Messages of one batch that another member has leased."""


async def finishes_all(trial: Trial) -> None:
    """A member leases everything, and accepts it."""
    await trial.fill(0, VALUES)
    await _work(trial, trial.group(), VALUES)


async def leaves_others(trial: Trial) -> None:
    """Of a batch, another member has leased some messages; they come in the batch all the same."""
    group = trial.group()
    values = [str(number) for number in range(3 * LEASED)]
    await trial.write(await trial.partition(owned=True), values)
    leased = await trial.client.queues.lease(trial.topic, group, max_records=LEASED)
    theirs = {each.message.value.decode() for each in leased}
    trial.plan({})
    async with trial.program.running("queue", trial.address, trial.topic, group) as running:
        await running.until(len(values) - len(theirs))
        await running.end()
    trial.find(running.problem)
    mine = [value for value in values if value not in theirs]
    trial.find(*compared(sorted(_values(running.lines), key=int), mine, "printed"))
    results = await trial.client.queues.answer([ledgermq.LeaseAnswer(each.handle) for each in leased])
    if not all(result.counts for result in results):
        trial.find("finished messages that another member has leased")
    await _expect_finished(trial, group)


async def loses_answers(trial: Trial) -> None:
    """Requests for messages and answers about them are lost, or refused for a while."""
    busy = Refused(Unavailable("the broker is busy", retry_after_ms=100))
    await trial.fill(0, VALUES)
    faults: dict[str, Sequence[Fault | None]] = {
        "ShareFetch": [LostRequest(), busy],
        "ShareAnswer": [LostAnswer(StatusCode.INTERNAL), LostRequest(), busy],
    }
    await _work(trial, trial.group(), VALUES, faults)
    trial.expect_met()


async def survives_an_owner(trial: Trial) -> None:
    """A broker ends, and with it the leases that it gave: their messages come again."""
    group = trial.group()
    await trial.fill(0, VALUES)
    trial.plan({"ShareAnswer": [Late(0.5)] * 3})
    async with trial.program.running("queue", trial.address, trial.topic, group) as running:
        await trial.lose_owner(running, "ShareAnswer")
        await trial.wait_for(lambda: len(set(_values(running.lines))) >= VALUES or running.ended)
        await trial.wait_until_finished(group)
        await running.end()
    trial.find(running.problem)
    missing = set(map(str, range(VALUES))) - set(_values(running.lines))
    if missing:
        trial.find(f"{len(missing)} values were not printed: {sorted(missing, key=int)[:5]}")
    await _expect_finished(trial, group)
    await trial.restore()


async def _work(
    trial: Trial, group: str, values: int, faults: Mapping[str, Sequence[Fault | None]] | None = None
) -> None:
    """Let the program work as the only member, until it has printed so many values; each comes once, and is
    finished.
    """
    trial.plan(faults or {})
    async with trial.program.running("queue", trial.address, trial.topic, group) as running:
        if not await running.until(values) and not running.ended:
            trial.find(f"printed {len(running.lines)} of {values} values in time")
        await running.end()
    trial.find(running.problem)
    trial.find(*compared(sorted(_values(running.lines), key=int), [*map(str, range(values))], "printed"))
    await _expect_finished(trial, group)


async def _expect_finished(trial: Trial, group: str) -> None:
    if trial.judge.leases.unanswered:
        trial.find(f"ended without a word about {trial.judge.leases.unanswered} messages that are leased to it")
    try:
        left = (await trial.client.queues.describe(group)).backlog
    except UnknownGroup:
        trial.find("leased no message")
        return
    if left:
        trial.find(f"{left} messages are not finished")


def _values(lines: Sequence[str]) -> list[str]:
    return [value for line in lines if (value := line.split(" ")[-1]).isdecimal()]
