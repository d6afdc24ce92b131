"""The groups and programs of a run: their members, their committed offsets as the cluster reports them, and
their end.

Only `main` is judged, and all its records are kept. Topics that are created and deleted only make
the members of `watchers` move.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from ledgermq.errors import LedgerMQError, UnknownGroup
from tests.chaos.workload import NEVER_TOLD, PARTITIONS, Workload
from tests.judges.violation import Violation
from tests.simulation.failures_truth import GROUP as FAILING
from tests.simulation.history import Partition

JUDGED = "main"
PROCESSORS = "processors"
"""Members read, write the outputs and commit offsets in transactions (`transactor`)."""
GROUPS = {"workers": JUDGED, "watchers": f"^({JUDGED}|temp-.*)$", PROCESSORS: JUDGED, FAILING: JUDGED}
"""Name → topics, or their pattern."""
WRITERS = ("shared", "shared", "alone")
"""By place: the transactional id of a program that writes to the outputs."""
MEMBERS = ("workers", "workers", "workers", "watchers", "watchers", PROCESSORS, PROCESSORS, *WRITERS, FAILING, FAILING)
"""By place: the role of its program, which is a group or a transactional id."""
SENDERS = "senders"
"""The role of idempotent producers that are processes."""
KAFKA_GROUPS = {"workers": JUDGED, "watchers": f"^({JUDGED}|temp-.*)$", PROCESSORS: JUDGED}
KAFKA_MEMBERS = (
    "workers", "workers", "workers", "watchers", "watchers", PROCESSORS, PROCESSORS, *WRITERS, SENDERS, SENDERS,
)  # fmt: skip


class Cast(NamedTuple):
    """The programs of a run that are processes. `groups`: name → topics. `members`: by place the role of its program.
    `never_told`: how errors begin that no program may receive.
    """

    groups: dict[str, str]
    members: tuple[str, ...]
    never_told: tuple[str, ...]
    is_kafka: bool


CASTS = {
    "ledgermq": Cast(GROUPS, MEMBERS, NEVER_TOLD, is_kafka=False),
    "librdkafka": Cast(
        KAFKA_GROUPS,
        KAFKA_MEMBERS,
        ("UNKNOWN ", "_BAD_MSG", "INVALID_MSG", "INVALID_RECORD", "OUT_OF_ORDER_SEQUENCE_NUMBER", "POLICY_VIOLATION"),
        is_kafka=True,
    ),
}
"""By the clients that a run names."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the cluster said that a group has committed; partitions that are not there have nothing.
    Monotonic nanoseconds.
    """

    group: str
    asked_ns: int
    told_ns: int
    offsets: dict[Partition, int]
    staged: frozenset[Partition] = frozenset()
    """Partitions of which a transaction has staged an offset: it may be committed, and not told yet."""


class CommittedAsker:
    def __init__(self, work: Workload, groups: Iterable[str]) -> None:
        self._work = work
        self._groups = list(groups)
        self._random = random.Random(f"committed {work.seed}")
        self.told: list[Told] = []

    async def run(self) -> None:
        while not self._work.stopped.is_set():
            await asyncio.sleep(self._random.expovariate(1.0))
            try:
                await self.ask(self._random.choice(self._groups))
            except LedgerMQError as error:
                self._work.told("committed offsets", error)

    async def ask(self, group: str) -> Told:
        asked_ns = time.monotonic_ns()
        async with self._work.connect() as client:
            committed, staged = {}, {}
            with suppress(UnknownGroup):
                found = await client.groups.describe(group)
                committed, staged = found.committed, found.staged
        offsets = {
            (at.topic, at.partition): known.stored.offset for at, known in committed.items() if at.topic == JUDGED
        }
        pending = frozenset((at.topic, at.partition) for at in staged)
        self.told.append(Told(group, asked_ns, time.monotonic_ns(), offsets, pending))
        return self.told[-1]

    def newest(self, group: str) -> dict[int, int]:
        """Return what was told last, by partition."""
        told = next((told for told in reversed(self.told) if told.group == group), None)
        return {number: offset for (_, number), offset in told.offsets.items()} if told is not None else {}

    async def ask_until_the_end(self, group: str, ends: dict[Partition, int], still_s_max: float) -> list[Violation]:
        """In good health, with nothing more to come: until the group is done with everything. It is stuck once its
        offsets have stood still for so long; how fast it is depends on the machine.
        """
        loop, told = asyncio.get_running_loop(), None
        moved_s = loop.time()
        while True:
            try:
                async with asyncio.timeout(still_s_max):
                    asked = await self._work.insist("committed offsets", lambda: self.ask(group))
            except TimeoutError:
                return [Violation("stuck", f"no broker tells what group {group} has committed: {still_s_max:.0f} s")]
            if asked.offsets == ends:
                return []
            if told is None or asked.offsets != told.offsets:
                moved_s = loop.time()
            told = asked
            if loop.time() - moved_s > still_s_max:
                text = f"group {group} has committed {told.offsets} of {ends}, and nothing for {still_s_max:.0f} s"
                return [Violation("stuck", text)]
            await asyncio.sleep(0.5)

    async def work_off(self, still_s_max: float) -> list[Violation]:
        async with self._work.connect() as client:
            ends = await self._work.insist("ends", lambda: client.list_offsets(JUDGED, "latest"))
        wanted = {(JUDGED, number): ends[number] for number in range(PARTITIONS) if ends[number]}
        found = await asyncio.gather(*(self.ask_until_the_end(group, wanted, still_s_max) for group in self._groups))
        return [violation for each in found for violation in each]
