"""Programs in two racks produce to a healthy cluster of two brokers, one in each, in some runs of level cluster; the
bundles have to gather where their bytes come from, and then to stay.

bytes not followed    bundles that were busy from one rack alone stayed in another one, though there was room
bundle restless       a bundle changed its owner twice, though the bytes and loads are steady
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ledgermq.client.messages.descriptions import TopicDescription
from ledgermq_ledger.keys import METADATA_BUNDLE
from tests.judges.violation import Violation
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.load_watch import SteadySender, loaded
from tests.simulation.world import World

TOPIC = "near"
BUNDLES, PARTITIONS = 19, 18
RACKS = {"b0": "r0", "b1": "r1", "near r0": "r0", "near r1": "r1"}
STEADY_S, GATHERED_S_MAX, STILL_S, LOOK_S = 100.0, 1500.0, 150.0, 0.2
"""Loads are known to all brokers after the first of these times."""
EXCHANGED_MIN = 2
"""Of each of two brokers: bundles that they could exchange."""


def near(seed: int) -> bool:
    """Return whether programs in two racks produce to two brokers in this run."""
    return not loaded(seed) and random.Random(f"racks of programs {seed}").random() < 0.06


def rack_of(who: str) -> str:
    return RACKS.get(who, "")


def with_racks(plan: ClusterPlan) -> ClusterPlan:
    """Return the plan with two brokers that have enough bundles to exchange some."""
    loads = replace(plan.constants.loads, near_s=20.0, near_bytes=1)
    settings = plan.settings.model_copy(update={"bundles": BUNDLES, "background_compaction": False})
    return replace(plan, brokers=2, settings=settings, constants=replace(plan.constants, loads=loads))


class NearWatch:
    """`senders`: one in each rack, by the rack."""

    def __init__(self, world: World, brokers: Mapping[str, ClusterBroker], senders: Mapping[str, SteadySender]) -> None:
        self._world = world
        self._brokers = brokers
        self._senders = senders
        self._racks: dict[int, set[str]] = defaultdict(set)
        """By bundle: where its bytes come from."""
        self._requests = Counter[int]()
        """By bundle, in a second."""

    async def watch(self, topic: TopicDescription) -> list[Violation]:
        self._share_out(topic)
        tasks = [sender.start() for sender in self._senders.values()]
        violations = await self._gathered()
        for sender in self._senders.values():
            sender.stopped.set()
        await asyncio.wait(tasks)
        return violations

    def _share_out(self, topic: TopicDescription) -> None:
        """Let most partitions be of one rack, and every fifth one of both."""
        taken: dict[str, list[int]] = {rack: [] for rack in self._senders}
        for partition in topic.partitions:
            both = sorted(self._senders)
            for rack in both if partition.partition % 5 == 0 else [self._world.random.choice(both)]:
                taken[rack].append(partition.partition)
                self._racks[partition.bundle].add(rack)
                self._requests[partition.bundle] += 1
        for rack, sender in self._senders.items():
            sender.take(taken[rack])

    def _owners(self) -> dict[int, str]:
        """Return the broker that serves each bundle; bundles on their way are missing."""
        return {
            bundle: name
            for name, broker in sorted(self._brokers.items())
            if broker.broker is not None
            for bundle in broker.broker.ownership.opened
            if bundle != METADATA_BUNDLE
        }

    def _crossing(self, owners: Mapping[int, str]) -> list[int]:
        return [bundle for bundle, racks in sorted(self._racks.items()) if racks == {_other(owners.get(bundle, ""))}]

    def _might_follow(self, left: list[int], owners: Mapping[int, str]) -> bool:
        """Return whether brokers could exchange some of the bundles, or the other one has less load than it should."""
        sides = Counter(owners[bundle] for bundle in left)
        load = Counter[str]()
        for bundle, count in self._requests.items():
            load[owners[bundle]] += count
        mean = load.total() / len(self._brokers)
        light = [bundle for bundle in left if load.total() - load[owners[bundle]] + self._requests[bundle] <= mean]
        return bool(light) or min((sides[name] for name in self._brokers), default=0) >= EXCHANGED_MIN

    async def _gathered(self) -> list[Violation]:
        """Look at each change of an owner until there is none for a while."""
        now, owners, changes = asyncio.get_running_loop().time, self._owners(), Counter[int]()
        began = self._crossing(owners)
        changed_s, steady_s, end_s = now(), now() + STEADY_S, now() + GATHERED_S_MAX
        while now() < min(end_s, changed_s + STILL_S):
            await asyncio.sleep(LOOK_S)
            found = owners | self._owners()
            for bundle in [bundle for bundle in found if found[bundle] != owners.get(bundle)]:
                changes[bundle] += now() >= steady_s
                changed_s = now()
                if changes[bundle] > 1:
                    return [Violation("bundle restless", f"bundle {bundle} of {self._racks[bundle]} came to {found}")]
            owners = found
        left = self._crossing(owners)
        self._world.note("near", f"{began} were in the other rack, {left} are; {sum(changes.values())} moved")
        if self._might_follow(left, owners):
            return [Violation("bytes not followed", f"{left} of {began} are in the other rack: {owners}")]
        if began and not left:
            self._world.coverage.saw("all bundles were in the rack of their bytes")
        return []


def _other(broker: str) -> str:
    return {"b0": "r1", "b1": "r0"}.get(broker, "")
