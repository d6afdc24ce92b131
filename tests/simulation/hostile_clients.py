"""The hostile principal: it repeats, bends and makes up requests in the name of others, at any broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ledgermq.errors import LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.frames import Frame
from ledgermq.protocol.naming.exclusive_ids import is_exclusive
from ledgermq.protocol.status import error_from_proto
from ledgermq_broker.access.state.rules import hash_of
from tests.broker.cluster import frame_of
from tests.simulation.cluster_clients import PARTITIONS, SimulatedClient
from tests.simulation.cluster_plan import ClusterPlan
from tests.simulation.history import Outcome
from tests.simulation.hostile import MALLORY, STAFF, Overheard
from tests.simulation.network import Network
from tests.simulation.world import World

TOPIC = "main"
CALLS_S = 40.0
BENT = 0.5
"""Share of requests to which each way of bending one is applied."""
MADE_UP = 0.3
"""Share of calls that no program of STAFF makes."""
BEGINS = 0.3
"""Share of batches that begin a session of STAFF in a partition before STAFF does."""
WAIT_MS_MAX = 300
Call = tuple[str, Any]
"""(attribute of the method, request)"""


class Mallory(SimulatedClient):
    """`writes`: it may produce to the topic; else it seldom tries."""

    def __init__(
        self, world: World, network: Network, plan: ClusterPlan, overheard: Overheard, *, writes: bool
    ) -> None:
        super().__init__(world, network, plan, MALLORY)
        self._overheard = overheard
        self._writes = writes

    async def work(self) -> None:
        connector = self._network.connector(self.name, self._plan.request_timeout_s)
        lines = {f"b{number}": connector.connect(f"b{number}") for number in range(self._plan.brokers)}
        async with asyncio.TaskGroup() as group:
            while not self.stopped.is_set():
                await asyncio.sleep(self.random.expovariate(CALLS_S))
                heard = sorted(self._overheard.requests)
                if not self._writes and self.random.random() < 0.8:
                    heard = [attribute for attribute in heard if attribute not in ("produce", "open_producer")]
                if not heard or self.random.random() < MADE_UP:
                    group.create_task(self._call(self.random.choice([*lines.values()]), *self._made_up()))
                    continue
                attribute = self.random.choice(heard)
                address, request = self.random.choice(self._overheard.requests[attribute])
                where = address if self.random.random() < 0.8 else self.random.choice([*lines])
                if attribute == "produce":
                    group.create_task(self._produce(lines[where], request))
                else:
                    group.create_task(self._call(lines[where], *self._bent(attribute, request)))

    async def _call(self, line: Any, attribute: str, request: Any) -> None:
        try:
            await getattr(line, attribute)(request)
        except LedgerMQError as error:
            self._world.coverage.saw(f"a hostile call failed: {type(error).__name__}")

    # Requests of others

    def _bent(self, attribute: str, heard: Any) -> Call:
        request = type(heard)()
        request.CopyFrom(heard)
        fields = request.DESCRIPTOR.fields_by_name
        own: dict[str, Callable[[Any], None]] = {
            "group_heartbeat": self._bend_heartbeat,
            "commit_offsets": self._bend_commit,
            "stage_offsets": self._bend_commit,
            "share_answer": self._bend_answer,
            "open_producer": self._bend_opening,
        }
        for bend, fits in (
            (self._forge_caller, "caller" in fields),
            (self._use_own_group, "group" in fields),
            (own.get(attribute, _leave), True),
        ):
            if fits and self.random.random() < BENT:
                bend(request)
        if "max_wait_ms" in fields:
            request.max_wait_ms = min(request.max_wait_ms, WAIT_MS_MAX)
        if attribute == "hold_partitions":
            return self._past_hold(request)
        return attribute, request

    def _forge_caller(self, request: Any) -> None:
        request.caller = hash_of(f"user:{STAFF}")

    def _use_own_group(self, request: Any) -> None:
        request.group = f"{MALLORY}.{request.group}"

    def _past_hold(self, request: pb.HoldPartitionsRequest) -> Call:
        """Ask under the id of a producer of STAFF, as it did before the last change, or give back what it has. To take
        the topic from it in its own turn is the right of each producer.
        """
        for wanted in request.partitions:
            if wanted.number and self.random.random() < 0.5:
                wanted.number -= 1
            else:
                wanted.ClearField("number")
        if not request.producer_id or self.random.random() < 0.6:
            return "hold_partitions", request
        return "release_partitions", pb.ReleasePartitionsRequest(
            producer_id=request.producer_id, partitions=request.partitions, caller=request.caller
        )

    def _bend_heartbeat(self, request: pb.GroupHeartbeatRequest) -> None:
        request.step = self.random.choice((pb.STAY, pb.JOIN, pb.LEAVE, pb.LEAVE_FOR_A_WHILE))
        request.seen_epoch += self.random.choice((0, 1, 100))
        del request.owned[:]

    def _bend_commit(self, request: Any) -> None:
        for commit in request.commits:
            commit.counter += self.random.choice((0, 1, 100))
            commit.offset += self.random.choice((0, 1, 100))
            commit.epoch += self.random.choice((0, 1))
        request.member_id = self.random.choice((request.member_id, ""))

    def _bend_answer(self, request: pb.ShareAnswerRequest) -> None:
        for span in (span for wanted in request.partitions for span in wanted.spans):
            span.word = self.random.choice((pb.ACCEPT, pb.REJECT, pb.RELEASE_SHARE, pb.RETURN, pb.RENEW))

    def _bend_opening(self, request: pb.OpenProducerRequest) -> None:
        if heard := self._overheard.requests.get("produce"):
            batch = self.random.choice(self.random.choice(heard)[1].header.batches)
            request.producer_id = batch.producer.id
            del request.partitions[:]
            request.partitions.add(topic=batch.topic, partition=batch.partition)

    async def _produce(self, line: Any, heard: Any) -> None:
        """Send a frame of STAFF again, or a batch in its place: with the sequence that follows, or that begins. No copy
        of the first batch of a session: mallory may write what it likes, and the judges would count that as STAFF's.
        """
        if self.random.random() < 0.3 and all(batch.producer.sequence for batch in heard.header.batches):
            await self._call(line, "produce_once", Frame(heard.header, heard.payload))
            return
        batch = self.random.choice(heard.header.batches)
        session = pb.ProducerSession()
        session.CopyFrom(batch.producer)
        topic, number = batch.topic, batch.partition
        if begins := self.random.random() < BEGINS:
            session.sequence, session.epoch = 0, session.epoch + self.random.choice((0, 0, 1))
            number = self.random.randrange(PARTITIONS)
            if not is_exclusive(session.id):
                self._overheard.begun.add((session.id, topic, number))
        else:
            session.sequence += batch.record_count
        await self._store(line, topic, number, session, begins=begins)

    async def _store(self, line: Any, topic: str, number: int, session: pb.ProducerSession, *, begins: bool) -> None:
        value, history = self.next_value(), self._world.history
        op = history.begin_produce(self.name, self.partition(topic, number), (value,), once=False, ordered=False)
        try:
            frame = frame_of(topic, number, value.encode(), session=session)
            [result] = (await line.produce_once(frame)).results
            if result.HasField("error"):
                raise error_from_proto(result.error)
        except LedgerMQError as error:
            self._world.coverage.saw(f"a hostile batch was refused: {type(error).__name__}")
            may_be_stored = (session.id, topic, number) in self._overheard.begun
            history.end_produce(op, Outcome.INFO if may_be_stored else Outcome.FAIL, why=error.message)
        else:
            if begins:
                self._world.coverage.saw("a hostile batch began a session")
            history.end_produce(op, Outcome.OK, result.base_offset)

    # Requests that mallory makes up

    def _made_up(self) -> Call:
        return self._look() if self.random.random() < 0.5 else self._change()

    def _look(self) -> Call:
        """Return a call that mallory may make, and whose answer may show too much."""
        number = self.random.randrange(PARTITIONS)
        wanted = pb.WantedPartition(topic=TOPIC, partition=number)
        calls: list[Call] = [
            ("list_groups", pb.ListGroupsRequest()),
            ("list_shares", pb.ListSharesRequest(bundle=1 + self.random.randrange(2), members=True)),
            ("find_messages", pb.FindMessagesRequest(topic=TOPIC, partition=number, offset=self.random.randrange(4))),
            ("hold_partitions", pb.HoldPartitionsRequest(partitions=[wanted])),
        ]
        return self.random.choice(calls)

    def _change(self) -> Call:
        """Return a call that mallory may not make."""
        number = self.random.randrange(PARTITIONS)
        group = self.random.choice(sorted(self._overheard.groups) or ["workers"])
        nonce = self.random.choice((b"", b"guessed"))
        shares = self.random.choice(
            (pb.ShareReset(topic=TOPIC, partition=number), pb.ShareReset(topic=TOPIC, partition=number, offset=0))
        )
        offsets = pb.OffsetReset(topic=TOPIC, partition=number, offset=self.random.randrange(3))
        records = pb.RecordsToDelete(partition=number, end=True)
        leaving = pb.LeavingMember(member_id="guessed")
        calls: list[Call] = [
            ("delete_topic", pb.DeleteTopicRequest(name=TOPIC, now=True)),
            ("alter_topic", pb.AlterTopicRequest(name=TOPIC, set={"retention.ms": "1"})),
            ("delete_records", pb.DeleteRecordsRequest(topic=TOPIC, partitions=[records])),
            ("reset_shares", pb.ResetSharesRequest(group=group, resets=[shares], nonce=nonce)),
            ("reset_offsets", pb.ResetOffsetsRequest(group=group, resets=[offsets], nonce=nonce)),
            ("delete_group", pb.DeleteGroupRequest(group=group)),
            ("describe_group", pb.DescribeGroupRequest(group=group)),
            ("fetch_committed", pb.FetchCommittedRequest(group=group)),
            ("leave_classic_group", pb.LeaveClassicGroupRequest(group=group, members=[leaving])),
        ]
        return self.random.choice(calls)


def _leave(request: Any) -> None:
    """Bend nothing."""
