"""Simulated members of classic groups: some commit what they have read, others write a record for each message in
transactions that commit their offsets, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import add_offsets_to_txn_request as ao
from ledgermq_broker.kafka.wire.generated import heartbeat_request as h
from ledgermq_broker.kafka.wire.generated import join_group_request as j
from ledgermq_broker.kafka.wire.generated import leave_group_request as le
from ledgermq_broker.kafka.wire.generated import offset_commit_request as oc
from ledgermq_broker.kafka.wire.generated import offset_fetch_request as of
from ledgermq_broker.kafka.wire.generated import sync_group_request as sy
from ledgermq_broker.kafka.wire.generated import txn_offset_commit_request as tc
from ledgermq_broker.kafka.wire.messages import (
    ADD_OFFSETS_TO_TXN,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
)
from ledgermq_offsets.classic.consumer_protocol import assigned_partitions, assignment, subscription
from tests.simulation.cluster_clients import PARTITIONS
from tests.simulation.kafka_lines import LineBroke
from tests.simulation.kafka_producers import Fenced, KafkaTransactor
from tests.simulation.kafka_programs import GROUPS, INPUT, OUTPUTS, KafkaProgram, codes_of
from tests.simulation.kafka_reading import Fetching
from tests.simulation.kafka_truth import Holding, Reader, Restore
from tests.simulation.transactions_truth import Sent, processed_as

REBALANCE_MS, JOIN_S = 4000, 12.0
SLOW = 0.2
"""Share of the transactions that a processor takes long to end."""
LOST = frozenset({Code.UNKNOWN_MEMBER_ID, Code.FENCED_INSTANCE_ID})


class Membership:
    """What a program keeps of its membership of a group."""

    def __init__(self, program: KafkaProgram, group: str) -> None:
        self.group = group
        self.id, self.generation = "", -1
        self._program = program

    async def enter(self) -> Collection[int] | None:
        """Join, and return the partitions that are given to it; None: it has to begin again."""
        answer = await self._ask(JOIN_GROUP, 9, self._join(), JOIN_S)
        if answer.error_code == Code.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            answer = await self._ask(JOIN_GROUP, 9, self._join(), JOIN_S)
        if answer.error_code:
            self.refused(answer.error_code)
            return None
        self.id, self.generation = answer.member_id, answer.generation_id
        members = sorted(member.member_id for member in answer.members) if answer.leader == self.id else []
        shares = {each: [n for n in range(PARTITIONS) if n % len(members) == at] for at, each in enumerate(members)}
        request = sy.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                sy.SyncGroupRequestAssignment(member_id=member, assignment=assignment({INPUT: numbers}))
                for member, numbers in shares.items()
            ],
        )
        answer = await self._ask(SYNC_GROUP, 5, request, JOIN_S)
        if answer.error_code:
            self.refused(answer.error_code)
            return None
        self._program.world.coverage.saw("a classic member was given partitions")
        return assigned_partitions(bytes(answer.assignment)).get(INPUT, [])

    def _join(self) -> j.JoinGroupRequest:
        return j.JoinGroupRequest(
            group_id=self.group,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[j.JoinGroupRequestProtocol(name="range", metadata=subscription([INPUT]))],
            session_timeout_ms=self._program.own.session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
        )

    def refused(self, code: int) -> None:
        self._program.world.coverage.saw(f"a classic member was told: {Code(code).name}")
        if code in LOST:
            self.id = ""

    async def heartbeat(self) -> int:
        return int((await self._ask(HEARTBEAT, 4, h.HeartbeatRequest(self.group, self.generation, self.id))).error_code)

    async def leave(self) -> None:
        if self.id:
            request = le.LeaveGroupRequest(self.group, members=[le.MemberIdentity(self.id)])
            try:
                await self._program.at_coordinator(GROUPS, self.group, LEAVE_GROUP, 5, request, tries=3)
            except LineBroke:
                pass
            self.id = ""

    async def commit(self, offsets: Mapping[int, int], generation: int | None = None, member: str = "") -> int:
        """Return a code that is not 0, if there is one."""
        return max((await self.commit_each(offsets, generation, member)).values())

    async def commit_each(
        self, offsets: Mapping[int, int], generation: int | None = None, member: str = "", purpose: str = ""
    ) -> dict[int, int]:
        """Return the code of each partition. `purpose`: of a line beside the one of the group; it raises LineBroke."""
        parts = [
            oc.OffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
            for number, offset in offsets.items()
        ]
        request = oc.OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=member or self.id,
            topics=[oc.OffsetCommitRequestTopic(name=INPUT, partitions=parts)],
        )
        tries = 2 if purpose else 0
        answer = await self._program.at_coordinator(
            GROUPS, self.group, OFFSET_COMMIT, 9, request, tries=tries, purpose=purpose
        )
        return {part.partition_index: part.error_code for part in answer.topics[0].partitions}

    async def committed(self, numbers: Collection[int]) -> dict[int, int]:
        """Return stable committed offsets; 0 where there is none."""
        wanted = [of.OffsetFetchRequestTopics(name=INPUT, partition_indexes=list(numbers))]
        group = of.OffsetFetchRequestGroup(group_id=self.group, topics=wanted)
        request = of.OffsetFetchRequest(groups=[group], require_stable=True)
        [found] = (await self._ask(OFFSET_FETCH, 9, request)).groups
        return {part.partition_index: max(0, part.committed_offset) for part in found.topics[0].partitions}

    async def _ask(self, api: Any, version: int, request: Any, timeout_s: float = 0.0) -> Any:
        return await self._program.at_coordinator(GROUPS, self.group, api, version, request, timeout_s=timeout_s)


class ClassicMember(Fetching):
    """Reads what it is given, and commits."""

    group = "classic"

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.membership = Membership(self, self.group)
        self.reader = Reader(self.label)
        self._late: list[asyncio.Task[None]] = []

    async def work(self) -> None:
        while not self.stopped.is_set():
            numbers = await self.membership.enter()
            if numbers is None:
                await self.pause()
                continue
            await self.live(numbers)
        await self.membership.leave()

    async def live(self, numbers: Collection[int]) -> None:
        """Be a member of one generation."""
        member, readers = self.membership, self.shared.readers
        self.reader = Reader(f"{self.label} {member.id[-6:]} in {member.generation}")
        for number in numbers:
            readers.take(self.reader, self.group, number, self.now_s(), alone=False)
        try:
            found = await self._begins_at(numbers) if numbers else {}
            self.positions = {number: readers.begin(self.reader.holds[number], at) for number, at in found.items()}
            former = member.generation, member.id
            code = await self._until_it_ends()
            if code and self.positions and self.random.random() < self.own.stale:
                late = self._commit_late(dict(self.reader.holds), dict(self.positions), *former)
                self._late.append(asyncio.create_task(late))
        finally:
            readers.let_go(self.reader, self.reader.holds)

    async def _begins_at(self, numbers: Collection[int]) -> dict[int, int]:
        return await self.membership.committed(numbers)

    async def _until_it_ends(self) -> int:
        member = self.membership
        over_s = self.now_s() + self.random.choice((2.0, 8.0, 1000.0))
        while not self.stopped.is_set():
            code = await self.go_on()
            code = code or await member.heartbeat()
            if code:
                if code == Code.REBALANCE_IN_PROGRESS:
                    await self.finish()
                member.refused(code)
                return code
            if self.now_s() > over_s and not self.world.healed:
                if self.random.random() < 0.5:
                    await member.leave()
                else:
                    member.id = ""  # it is gone, as after a crash
                await self.pause()
                return 0
        await self.finish()
        return 0

    async def go_on(self) -> int:
        """Read and commit; return why it cannot go on, or 0."""
        done = self.shared.readers.done[self.group]
        for number, records in (await self.fetch(self.positions, 0.3)).items():
            done[number].update(offset for offset, _ in records)
            self.positions[number] = records[-1][0] + 1
        return await self._commit() if self.random.random() < 0.3 else 0

    async def finish(self) -> None:
        await self._commit()

    async def _commit(self) -> int:
        readers = self.shared.readers
        if not self.positions:
            return 0
        begun = [readers.committing(self.reader.holds[number], at) for number, at in self.positions.items()]
        code = await self.membership.commit(self.positions)
        if not code:
            self.world.coverage.saw("a classic member has committed")
            for commit in begun:
                readers.committed(commit)
        return code

    async def _commit_late(
        self, holds: Mapping[int, Holding], positions: Mapping[int, int], generation: int, member: str
    ) -> None:
        """Commit under a generation that is over, as a thread of the program that has not heard so."""
        await asyncio.sleep(self.random.uniform(0.0, 4.0))
        if self.world.healed:
            return
        readers = self.shared.readers
        begun = [readers.committing(holds[number], at) for number, at in positions.items()]
        try:
            codes = await self.membership.commit_each(positions, generation, member, purpose="late")
        except LineBroke:
            return
        code = max(codes.values())
        self.world.coverage.saw(f"a commit of a former generation was answered: {Code(code).name}")
        for commit in begun if not code else ():
            readers.committed(commit)


class Processor(ClassicMember, KafkaTransactor):
    """For each message of its input, it writes one record to each output, and commits both in one transaction."""

    group = "processors"

    async def work(self) -> None:
        while not self.stopped.is_set():
            try:
                await self.init()
                await super().work()
            except Fenced:
                self.world.coverage.saw("a processor was fenced")
            await self.pause()

    async def _begins_at(self, numbers: Collection[int]) -> dict[int, int]:
        """Read, as a program does that keeps its state in the outputs, up to where they end. It asks for the ends of
        what is committed behind the offsets of the group, or before them for those that wait for open transactions.
        """
        isolation = self.random.choice((0, 1))
        ends = await self._ends(numbers, isolation) if isolation == 0 else {}
        found = await super()._begins_at(numbers)
        ends = ends or await self._ends(numbers, isolation)
        is_member = await self.membership.heartbeat() in (0, Code.REBALANCE_IN_PROGRESS)
        for number, at in found.items() if is_member else ():
            self.world.coverage.saw("a processor restored a partition")
            self.shared.readers.restores.append(Restore(number, at, ends[number]))
        return found

    async def _ends(self, numbers: Collection[int], isolation: int) -> dict[int, dict[str, int]]:
        return {
            number: {output: await self.end_of((output, number), isolation) for output in OUTPUTS} for number in numbers
        }

    async def go_on(self) -> int:
        found = await self.fetch(self.positions, 0.3)
        if not found:
            return 0
        code = 0

        async def process(sent: Sent) -> None:
            nonlocal code
            await self.add([(output, number) for output in OUTPUTS for number in found])
            await self._add_group()
            for number, records in found.items():
                for output in OUTPUTS:
                    values = [
                        f"{processed_as(output, number, at)}/{self.label}.{self.next_value().rpartition('/')[2]}"
                        for at, _ in records
                    ]
                    await self.stage(sent, (output, number), [values])
            await self.stand_still()
            code = await self._send_offsets(behind)
            if self.random.random() < SLOW and not self.world.healed:  # meanwhile it may lose its membership
                await asyncio.sleep(self.random.uniform(0.0, 1.5 * self.own.session_ms / 1000))

        readers = self.shared.readers
        behind = {number: records[-1][0] + 1 for number, records in found.items()}
        begun = [readers.committing(self.reader.holds[number], at) for number, at in behind.items()]
        if await self.transaction(process, is_good=lambda: not code):
            self.world.coverage.saw("a processor has committed", len(found))
            self.positions |= behind
            for commit in begun:
                readers.committed(commit)
            return 0
        return code  # what was aborted is read again

    async def finish(self) -> None:
        """Everything is committed already."""

    async def _commit_late(self, *about: Any) -> None:
        """Its commits are those of its transactions."""

    async def _add_group(self) -> None:
        """Add the group. In the second protocol its first offset does that."""
        if self.is_second:
            return
        request = ao.AddOffsetsToTxnRequest(self.transactional_id or "", *self.producer, self.group)
        self.check(await self._at(ADD_OFFSETS_TO_TXN, 3, request), "add offsets")

    async def _send_offsets(self, offsets: Mapping[int, int]) -> int:
        parts = [
            tc.TxnOffsetCommitRequestPartition(partition_index=number, committed_offset=offset)
            for number, offset in offsets.items()
        ]
        request = tc.TxnOffsetCommitRequest(
            self.transactional_id or "",
            self.group,
            *self.producer,
            generation_id=self.membership.generation,
            member_id=self.membership.id,
            topics=[tc.TxnOffsetCommitRequestTopic(INPUT, parts)],
        )
        version = 5 if self.is_second else 3
        answer = await self.at_coordinator(GROUPS, self.group, TXN_OFFSET_COMMIT, version, request)
        code = max(codes_of(answer))
        if code in (Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_PRODUCER_ID_MAPPING):
            raise Fenced
        if code:
            self.world.coverage.saw(f"offsets of a transaction were refused: {Code(code).name}")
        return code
