"""Kill an owner at the moment at which it has completed a transaction with timed messages, in some runs of level
*timers*.

The segment is stored, and nothing has left the owner yet. So the coordinator repeats its call to the next owner, which
has nothing but the log to tell that all is done. Dice alone kill a broker at this moment once in hundreds of seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.loop import Process
from tests.simulation.timers_plan import timers_plan_of
from tests.simulation.world import World

KILLED_MAX = 4
SHARE = 0.5
AWAY_S_MAX = 5.0


def kills_owners(seed: int) -> bool:
    """Return whether owners die in this run when they have completed a transaction."""
    return timers_plan_of(seed).transactors > 0 and random.Random(f"deaths at completions {seed}").random() < 0.5


class KilledOwners:
    """`brokers`: the incarnations that are at work now. `back(process, seconds)`: start it again after so long."""

    def __init__(
        self, world: World, brokers: Mapping[str, ClusterBroker], back: Callable[[Process, float], None]
    ) -> None:
        self._world = world
        self._brokers = brokers
        self._back = back
        self._random = random.Random(f"killed at completions {world.seed}")
        self._left = KILLED_MAX

    def stored(self, bundle: int, index: fmt.SegmentIndex) -> None:
        """Note a segment that was put just now."""
        if self._world.healed or not self._left:
            return
        owner = self._owner(bundle, index.epoch)
        if owner is None or not _takes_in_of_a_commit(owner, index) or self._random.random() >= SHARE:
            return
        self._left -= 1
        self._world.note(owner.name, f"killed, it has completed a transaction in bundle {bundle}")
        self._world.coverage.saw("an owner was killed when it had completed a transaction with timed messages")
        owner.process.kill()
        self._back(owner.process, self._random.uniform(0, AWAY_S_MAX))

    def _owner(self, bundle: int, epoch: int) -> ClusterBroker | None:
        for served in self._brokers.values():
            opened = served.broker.ownership.opened.get(bundle) if served.broker is not None else None
            if opened is not None and opened.epoch == epoch and served.process.alive:
                return served
        return None


def _takes_in_of_a_commit(owner: ClusterBroker, index: fmt.SegmentIndex) -> bool:
    """Return whether blocks enter the intake that no producer has sent there."""
    assert owner.broker is not None
    hidden = owner.broker.metadata.catalog.topics_by_name.get(keys.DELAYED_TOPIC)
    return hidden is not None and any(
        entry.topic_id == hidden.id and entry.partition % keys.NEAR_PARTITIONS == 0 and not entry.producer_id
        for entry in index.batches
    )
