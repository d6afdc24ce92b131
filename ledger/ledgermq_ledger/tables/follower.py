"""Keep the tables of topics up to date, as the owner of a topic's partition 0 does beside its rounds.

A registrar that finds nothing new costs one LIST for each bundle of the topic: only a checkpoint that it
has not seen can bring files, or let them go. What is remembered here decides when to look, never what to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.cluster import ClusterSettings
from ledgermq_ledger.delta.names import is_in_a_log
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.log.chains.numbered import list_numbered
from ledgermq_ledger.object_store.contract import ObjectStore
from ledgermq_ledger.parquet.merging.names import parse_merged
from ledgermq_ledger.tables.latest import newest_number
from ledgermq_ledger.tables.registrar import Registrar
from ledgermq_ledger.topics.tables import holds_too_much
from ledgermq_ledger.topics.topic import Topic

GATES_EVERY_S = 60.0
"""Between two looks whether versions have become too old to be open. No jitter: topics begin at different times."""
FOREIGN_EVERY_S = 3600.0
"""Between two looks for files that LedgerMQ did not put. No jitter, as above."""
LATE_S = 3600.0
"""A table that is behind its Parquet files for so long is reported."""
VERSIONS_AT_ONCE = 100
FOREIGN_MAX = 5


@dataclass(slots=True)
class TableState:
    """The table of a topic as its owner keeps it. `now_s`: the loop's clock. `since_s`: when it last had all
    that Parquet has. `why`: what it waits for. `held_bytes`: of files below the log start that stay because a version
    names them. `foreign`: objects in its folder that LedgerMQ did not put.
    """

    topic: str
    now_s: Callable[[], float]
    since_s: float
    why: str = ""
    stopped: dict[int, str] = field(default_factory=dict)
    held_bytes: int = 0
    foreign: list[str] = field(default_factory=list)

    @property
    def behind_s(self) -> float:
        return max(0.0, self.now_s() - self.since_s) if self.why or self.stopped else 0.0

    def alarms(self) -> list[str]:
        """Return what an operator has to do something about."""
        found = [
            f"the table of topic {self.topic} stands still in partition {partition}: {why};"
            f" `ledgermq table rebuild {self.topic}` begins a new generation of the table"
            for partition, why in sorted(self.stopped.items())
        ]
        if self.why and self.behind_s >= LATE_S:
            minutes = int(self.behind_s // 60)
            found.append(f"the table of topic {self.topic} is {minutes} minutes behind its Parquet files: {self.why}")
        if self.foreign:
            found.append(
                f"topic {self.topic} has a table, and objects in its folder that LedgerMQ did not put, which plain"
                f" readers take for records: {', '.join(self.foreign[:FOREIGN_MAX])}; remove them, and give readers"
                " credentials that cannot write"
            )
        return found


class TableFollower:
    """`topic`: a living one with a table. `now_s`: the loop's clock. `state`: of the follower before, if the topic was
    altered since and its table is the same one. `log_checkpoint_every`: as in `Registrar`.
    """

    def __init__(
        self,
        store: ObjectStore,
        cluster: ClusterSettings,
        topic: Topic,
        sources: Sources,
        now_s: Callable[[], float],
        state: TableState | None = None,
        log_checkpoint_every: int | None = None,
    ) -> None:
        self.topic = topic
        self.state = state or TableState(topic.name, now_s, now_s(), "it was not looked at yet")
        self._store, self._now_s = store, now_s
        self._make = partial(Registrar, store, cluster, topic, sources, log_checkpoint_every)
        self._seen: list[int] = []
        """Newest checkpoints, and versions, as of the last look that found nothing more to say."""
        self._waits = ""
        self._due_s = self._gates_s = self._measured_s = self._foreign_s = float("-inf")

    @cached_property
    def _registrar(self) -> Registrar:
        """Made at the first look: its errors are those of that look."""
        return self._make()

    async def follow(self) -> int:
        """Register what is new, and raise the gates that are due. Return how many versions were put.

        Raises what `Registrar.turn` raises; then the table waits, and a repeated call goes on.
        """
        try:
            versions = await self._register()
            is_due = self._now_s() - self._gates_s >= GATES_EVERY_S
            if is_due:
                await self._registrar.raise_gates()
                self._gates_s = self._now_s()
            await self._measure(is_due=is_due)  # behind the gates: what they let go is not held any longer
        except Exception as error:
            self.state.why = str(error) or repr(error)
            await self._measure()
            raise
        return versions

    @property
    def holds_too_much(self) -> bool:
        """Return True if the table is to be unset because of what it holds back (`table.hold.max.bytes`)."""
        return holds_too_much(self.topic.settings, self.state.held_bytes)

    async def _register(self) -> int:
        numbers = await self._numbers()  # only another one of them, or another follower, changes what it waits for
        versions = 0
        while numbers != self._seen and self._now_s() >= self._due_s:
            turn = await self._registrar.turn()
            self.state.stopped, self._waits = turn.stopped, turn.waits
            self._due_s = self._now_s() + turn.pause_ms / 1000
            if turn.pause_ms:
                break
            if turn.committed is None:
                self._seen = numbers
                break
            versions += 1
            if versions == VERSIONS_AT_ONCE:
                self.state.why = "it has more to register"
                return versions
        self.state.why = self._waits
        if not (self.state.why or self.state.stopped):
            self.state.since_s = self._now_s()
        return versions

    async def _numbers(self) -> list[int]:
        """Return the newest checkpoint of each bundle of the topic, and the newest version of each keyed partition:
        another one may have brought files.
        """
        found = []
        for bundle in sorted(self.topic.bundles_in_use):
            numbers = [number async for number, _ in list_numbered(self._store, keys.checkpoints(bundle))]
            found.append(max(numbers, default=0))
        if self.topic.settings.keyed:  # cleaning publishes versions without a checkpoint
            places = [PartitionId(self.topic.id, partition) for partition in range(self.topic.partitions)]
            found += [await newest_number(self._store, place) for place in places]
        return found

    async def _measure(self, *, is_due: bool = False) -> None:
        """Measure what the table holds back, also one that cannot be read: it holds most. Look for foreign objects."""
        now_s = self._now_s()
        if is_due or now_s - self._measured_s >= GATES_EVERY_S:
            self.state.held_bytes = await self._registrar.held_bytes()
            self._measured_s = now_s
        if now_s - self._foreign_s >= (GATES_EVERY_S if self.state.foreign else FOREIGN_EVERY_S):
            self.state.foreign = [
                info.key
                async for info in self._store.list(self._registrar.folder)
                if keys.parse_parquet(info.key) is None
                and keys.parse_keyed(info.key) is None
                and parse_merged(info.key) is None
                and not is_in_a_log(info.key)
            ]
            self._foreign_s = now_s
