"""Run level *kafka*, clients of the Kafka protocol on a whole cluster: idempotent and transactional producers,
members of classic groups and of KIP-848, readers; all of them pause, die and come back, under every disturbance of
level *cluster*. They talk to the listener's own connection code over lines of the simulated network.

At the end everything heals, and the groups work the input off. Then nothing may be staged, pending or undecided, and
what is visible, committed and read is compared with what clients were told.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ledgermq.errors import LedgerMQError
from ledgermq_ledger import keys
from tests.judges.violation import Violation
from tests.simulation.cluster_end import HEALING_S, topic_names
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.former_owners import FormerOwners
from tests.simulation.groups_truth import GroupTruth, group_truth, judge_done
from tests.simulation.history import FinalLog, Partition
from tests.simulation.kafka_ambush import KafkaAmbush
from tests.simulation.kafka_consumers import Member848
from tests.simulation.kafka_lines import Ports
from tests.simulation.kafka_members import ClassicMember, Processor
from tests.simulation.kafka_plan import kafka_plan_of
from tests.simulation.kafka_producers import KafkaSender, KafkaTransactor
from tests.simulation.kafka_programs import INPUT, OUTPUTS, KafkaProgram, Shared
from tests.simulation.kafka_reading import KafkaReader
from tests.simulation.kafka_restorer import KafkaRestorer, restores
from tests.simulation.kafka_sharers import GROUP, LETTERS, KafkaSharer
from tests.simulation.kafka_truth import judge_restores
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.roaming import Roaming, roams, with_moves
from tests.simulation.transactions_truth import TransactionTruth, judge, judge_processed, transaction_truth

KINDS: dict[str, type[KafkaProgram]] = {
    "i": KafkaSender,
    "r": KafkaReader,
    "t": KafkaTransactor,
    "p": Processor,
    "g": ClassicMember,
    "k": Member848,
    "s": KafkaSharer,
    "w": KafkaRestorer,
}
"""By the first letter of a program's name."""
AMBUSH_S = 40.0
"""How long the troubles of a run last that needs a group which forms again and again."""
MEMBERS = {"processors": "p", "classic": "g", "consumers": "k"}
"""By family, which is also the name of the group."""


class KafkaRun(ClusterRun):
    lasting = (INPUT, *OUTPUTS)
    requests_factor = 6

    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        super().__init__(loop, seed, lines_kept)
        self.own = kafka_plan_of(seed)
        settings = self.cluster.settings.model_copy(
            update={
                "producer_states_max": 100_000,  # with fewer, docs/kafka.md promises less
                "group_session_timeout_ms": self.own.session_ms,
                "offsets_partitions": 1 + seed % 3,
                "bundles": max(3, self.cluster.settings.bundles),
                "background_compaction": seed % 3 == 0,  # other levels have more of it
                "kafka_share_auto_offset_reset": "earliest",
            }
        )
        if self.own.outlives:  # so that it is soon taken for gone
            settings = settings.model_copy(update={"heartbeat_interval_ms": 200})
        self.cluster = replace(
            self.cluster,
            compactors=min(1, self.cluster.compactors),
            seconds=AMBUSH_S if self.own.withdraws else min(self.cluster.seconds, 20.0),
            settings=settings,
            topic_settings=dict.fromkeys(self.lasting, self.cluster.topic_settings[INPUT]),
            constants=replace(self.cluster.constants, limits=self.own.limits, carry_slots=1 + 19 * (seed % 2)),
        )
        if roams(seed):
            self.cluster = with_moves(self.cluster)
            self._roaming = Roaming(self.world, self.brokers, self.bundles, OUTPUTS[0] if seed % 2 else INPUT)
        self.network.on_call = FormerOwners(self.world, self.brokers).arrived
        self._shared = Shared()
        if self.own.is_ambush:
            ambush = KafkaAmbush(self.world, self.own, self.brokers, self._back, self._shared.ended.set)
            self.world.store.on_segment = ambush.stored
        self.world.judged_elsewhere.add(LETTERS)
        self._ports = Ports(self.world, self.network, self.brokers)
        self._programs: dict[str, KafkaProgram] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def _start_clients(self) -> list[asyncio.Task[None]]:
        if self.own.outlives:
            self.world.loop.in_world(self._outlive_terms())
        names = ["i1"]
        if self.own.has("transactions"):
            names += ["t0", "t1", "t2"]
        for family, letter in MEMBERS.items():
            names += [f"{letter}{number}" for number in range(self.own.members if self.own.has(family) else 0)]
        names += [f"s{number}" for number in range(self.own.members if self.own.is_shared else 0)]
        names += ["w0"] if restores(self.own) else []
        for name in names:
            self._start(name)
        self._clients = [self._made(name) for name in ("i0", "r0")]
        return [client.start() for client in self._clients]

    def _start(self, name: str) -> None:
        if name[0] not in KINDS:
            super()._start(name)
            return
        program = self._programs[name] = self._made(name)
        if self.world.healed and name[0] in "irtw":
            program.stopped.set()
        self._tasks[name] = program.start()

    def _made(self, name: str) -> KafkaProgram:
        self._incarnation += 1
        return KINDS[name[0]](self._ports, self.cluster, self.own, self._shared, name, self._incarnation)

    def _victims(self) -> list[Process]:
        return super()._victims() + [program.process for program in self._programs.values()]

    def _back(self, process: Process, seconds: float) -> None:
        self._disturbances.later(seconds, lambda: self._start(process.name))

    async def _stop_programs(self, kinds: str) -> None:
        ending = {name: program for name, program in self._programs.items() if name[0] in kinds}
        for program in ending.values():
            program.stopped.set()
        if ending:
            await self._until_ended({name: self._tasks[name] for name in ending})

    async def _check_memory(self) -> None:
        self._shared.ended.set()
        await self._stop_programs("irtw")
        await super()._check_memory()

    async def _compact_all(self) -> None:
        """Before that: the input is worked off, and every transaction comes to its end."""
        for family, letter in MEMBERS.items():
            if self.own.has(family):
                await self._work_off(family, f"the input is not worked off by group {family}")
                await self._stop_programs(letter)
        if self.own.is_shared:
            await self._until_shared()
            await self._stop_programs("s")
        await self._until_no_transaction_is_open(lambda: self._truth().open)
        await super()._compact_all()

    async def _until_shared(self) -> None:
        """Wait until the share group has finished all of the input."""
        client = self._plain_client("look")
        left: object = "it is not known"
        try:
            async with asyncio.timeout(HEALING_S):
                while True:
                    try:
                        found = (await client.queues.describe(GROUP)).partitions
                        starts = {each.partition.partition: each.start for each in found}
                        ends = await client.list_offsets(INPUT)
                        left = f"it begins at {starts}, and the topic ends at {ends}"
                        if starts == ends:
                            break
                    except LedgerMQError as error:
                        left = error.message
                    await asyncio.sleep(1.0)
        except TimeoutError:
            text = f"after {HEALING_S:.0f} s of health the share group has not finished: {left}"
            self.world.violations.append(Violation("stuck", text))
        await client.close()

    def _truth(self) -> TransactionTruth:
        return transaction_truth(self.world.store, range(1, self.bundles()), topic_names(self.world))

    def _final_logs(self) -> dict[Partition, FinalLog]:
        return {
            partition: log
            for partition, log in super()._final_logs().items()
            if not keys.is_internal(partition[0]) and not partition[0].startswith(f"{LETTERS}#")
        }

    def _conclude(self, drained: list[tuple[str, Partition]]) -> None:
        super()._conclude(drained)
        world, truth, readers = self.world, self._truth(), self._shared.readers
        world.coverage.saw("a record of a Kafka transaction became visible", len(truth.visible.keys() & truth.staged))
        world.coverage.saw("a staged record was carried forward", truth.carried)
        world.violations += judge(truth, self._shared.sent)
        world.violations += readers.violations
        world.violations += judge_restores(readers.restores, truth.visible, OUTPUTS)
        self._judge_groups(truth)
        if self.own.is_shared:
            self._judge_shares()

    def _judge_shares(self) -> None:
        logs, everything = self._final_logs(), super()._final_logs()
        name = f"{INPUT}#{self.world.topic_ids[INPUT]}"
        letters = [log for (topic, _), log in everything.items() if topic.startswith(f"{LETTERS}#")]
        copies = {value for log in letters for value in log.records.values()}
        self.world.coverage.saw("a dead letter of a share group was stored", len(copies))
        of_input = {number: log for (topic, number), log in logs.items() if topic == name}
        self.world.violations += self._shared.shares.judge(of_input, copies)

    def _judge_groups(self, truth: TransactionTruth) -> None:
        by_name = {name: topic_id for topic_id, name in topic_names(self.world).items()}
        bundles = range(1, self.bundles())
        groups = group_truth(self.world.store, bundles, by_name.get(keys.OFFSETS_TOPIC, -1), set(by_name.values()))
        world, readers = self.world, self._shared.readers
        world.violations += groups.violations
        if groups.resets:  # no program has asked for one, and none commits less than it, or one before it, has read
            world.violations.append(Violation("committed offset went back", f"{groups.resets} times, by a new epoch"))
        world.coverage.saw("an offset of a Kafka client was committed", groups.commits)
        for family in MEMBERS:
            if family == "processors":
                if self.own.has(family):
                    world.violations += judge_processed(truth.visible, _committed(groups, family), OUTPUTS)
                continue
            done = {
                partition: readers.done[family][partition.partition]
                for name, partition in groups.committed
                if name == family
            }
            world.violations += judge_done(groups, family, done)


def _committed(truth: GroupTruth, group: str) -> dict[int, int]:
    return {
        partition.partition: value.offset or 0 for (name, partition), value in truth.committed.items() if name == group
    }
