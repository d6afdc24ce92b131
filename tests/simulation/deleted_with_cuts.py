"""A program that deletes topics together with the cuts that have them, in some runs of the level *cuts*, while cuts are
taken all the time; and a judge that finds cuts which should have gone, by the records of `__metadata` alone (I21).
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from ledgermq_ledger.cuts.record import LIVE, PREFIX
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.topics.topic import topic_key
from tests.judges.violation import Violation
from tests.simulation.cluster_clients import SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.cuts_clients import Book
from tests.simulation.drawn_epochs import comes_apart
from tests.simulation.network import Network
from tests.simulation.racing_commits import races
from tests.simulation.world import World

PAUSE_S = 1.0


def deletes_topics(seed: int) -> bool:
    """Return whether there is such a program in this run."""
    return comes_apart(seed) and not races(seed) and random.Random(f"topics deleted with cuts {seed}").random() < 0.5


class Deleter(SimulatedClient):
    """Creates a topic, and deletes it with its cuts. It tells the book which cuts may be gone."""

    def __init__(self, world: World, network: Network, plan: ClusterPlan, name: str, book: Book) -> None:
        super().__init__(world, network, plan, name)
        self._book = book

    async def work(self) -> None:
        while not self.stopped.is_set():
            try:
                await self._cycle(self.next_value())
            except LedgerMQError as error:
                self._world.judge_error(error)
                self._world.note(self.name, f"{type(error).__name__}: {error.message[:100]}")

    async def _cycle(self, name: str) -> None:
        await self.client.create_topic(name, 1)
        await asyncio.sleep(self.random.expovariate(1 / PAUSE_S))
        self._book.unanswered += 1  # until the answer comes, each cut may be gone
        gone = await self.client.topics.delete_with_cuts(name)
        self._book.unanswered -= 1
        self._book.gone.update(gone)
        self._book.deleted.add(name)
        for cut in gone:
            self._book.cuts.pop(cut, None)
        self._world.coverage.saw("a topic was deleted with its cuts")


@dataclass(slots=True)
class _Cuts:
    """The cuts that live by the records so far: by name the id, the newest record's offset, and the state."""

    live: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, offset: int, key: bytes, value: bytes | None) -> None:
        record = None if value is None else fmt.CutRecord.FromString(value)
        if record is None or record.state not in LIVE:
            self.live.pop(key, None)
        else:
            self.live[key] = (record.id or offset, offset, record.state)

    def may_have(self, topic_id: int) -> set[int]:
        """Return the ids of the cuts that may have a topic that was not removed until now."""
        return {cut for cut, newest, state in self.live.values() if state == fmt.PENDING or newest > topic_id}


def judge_deletions(world: World, deleted: set[str]) -> list[Violation]:
    """Find the cuts that live behind the segment that removed one of these topics, and might have it."""
    cuts, ids, found = _Cuts(), dict[bytes, int](), []
    wanted = {topic_key(name) for name in deleted}
    for segment in world.store.history(keys.METADATA_BUNDLE):
        stay: dict[bytes, set[int]] = {}
        for offset, key, value in segment.records() if segment.valid else ():
            if key.startswith(PREFIX):
                cuts.add(offset, key, value)
            elif key in wanted and value is not None:
                record = fmt.TopicRecord.FromString(value)
                topic_id = ids.setdefault(key, record.topic_id or offset)
                if record.state == fmt.REMOVED:
                    stay.setdefault(key, {cut for cut in cuts.may_have(topic_id) if cut < offset})
        live = {cut for cut, _, _ in cuts.live.values()}
        for key, had in stay.items():
            if left := had & live:
                text = f"{key!r} was deleted with its cuts, but cuts {sorted(left)} stay"
                found.append(Violation("a cut has what was deleted with its cuts", text))
    return found
