"""The failed messages of a run: each is handled or a dead letter at its end, in exactly one place. The
simulation's judge knows which copies each message must have.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import ledgermq
from ledgermq.client.groups.retry_topics import Origin, failures_of
from ledgermq.errors import UnknownTopic
from tests.chaos.failing_member import PLAN
from tests.chaos.workload import Workload
from tests.judges.violation import Violation
from tests.simulation.failures_truth import (
    DEAD,
    GROUP,
    RETRY,
    TOPIC,
    Calls,
    Copy,
    FailuresTruth,
    judge_failures,
)


class Judged(NamedTuple):
    violations: list[Violation]
    report: str


async def until_settled(work: Workload, still_s_max: float) -> list[Violation]:
    """In good health, with nothing more to come: until no message waits for an attempt. The group is stuck once what is
    left has stood still for so long; how fast it is depends on the machine.
    """
    left: dict[str, int] = {}
    async with work.connect() as client:
        while True:
            try:
                async with asyncio.timeout(still_s_max):
                    while (found := await _left(work, client)) == left and found:
                        await asyncio.sleep(0.5)
            except TimeoutError:
                text = f"group {GROUP} has not finished {left}, and nothing of it for {still_s_max:.0f} s of health"
                return [Violation("stuck", text)]
            if not found:
                return []
            left = found


async def _left(work: Workload, client: ledgermq.Client) -> dict[str, int]:
    lags = await work.insist("lag of the failing group", lambda: client.groups.lag(GROUP))
    return {str(at): lag.messages for at, lag in lags.items() if lag.messages}


async def judge_failed(work: Workload, diaries: Iterable[Path]) -> Judged:
    """Read what is stored, and compare it with what the handlers did."""
    truth = FailuresTruth()
    async with work.connect() as client:
        truth.originals = await _all(client, TOPIC)
        for message in [*await _all(client, RETRY), *await _all(client, DEAD)]:
            failures = failures_of(message.headers)
            if failures is None:
                truth.report("changed copy", f"{message} has no headers of a copy")
            else:
                truth.copies.append(Copy(message, failures))
        found = (await client.groups.describe(GROUP)).committed
        committed = {(at.topic, at.partition): known.stored.offset for at, known in found.items()}
    ends = Counter((copy.message.topic, copy.message.partition) for copy in truth.copies if not copy.is_dead)
    for at, end in ends.items():
        if committed.get(at, 0) < end:
            truth.report("stuck", f"{at} is committed to {committed.get(at, 0)} of {end}")
    judge_failures(truth, PLAN, work.seed, Calls(handled=succeeded(diaries)), committed)
    dead = sum(copy.is_dead for copy in truth.copies)
    report = f"failed messages: {len(truth.copies) - dead} moves to the retry topic, {dead} dead letters"
    return Judged(truth.violations, report)


def succeeded(diaries: Iterable[Path]) -> set[tuple[Origin, int]]:
    """Return what handlers were done with, by origin and attempt."""
    found: set[tuple[Origin, int]] = set()
    for diary in diaries:
        for line in diary.read_text().split("\n")[:-1] if diary.exists() else ():
            match line.split(" "):
                case [_, "succeeded", topic, number, offset, attempt]:
                    found.add((Origin(topic, int(number), int(offset)), int(attempt)))
    return found


async def _all(client: ledgermq.Client, topic: str) -> list[ledgermq.Message]:
    """Return all messages of a topic; none if it does not exist."""
    try:
        async with client.consumer(topic, until_end=True) as consumer:
            return [message async for message in consumer]
    except UnknownTopic:
        return []
