"""Random lives of one group, and what has to hold after every step: a machine for hypothesis.

`test_groups` runs it on the true rules and on broken ones.

Clients are slow and the network loses, delays and repeats what they send; members stall, die,
restart and come back; coordinators die with the last decisions unwritten. The machine does not
trust epochs: it counts for each partition how often it changed hands or was reset (its *era*), and
a commit that applies must be of the present era.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from ledgermq.errors import GroupNotEmpty, StaticIdInUse, UnknownGroup, UnknownMember
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.assignors.choose import ASSIGNORS
from tests.property.group_client import GROUP, SESSION_MS, TOPICS, Client, Sent
from tests.property.group_promises import MEMBERS, RETENTION_MS, GroupPromises

who = st.integers(0, MEMBERS - 1)
steps = st.sampled_from([0, 0, 1, 3, -2])


class GroupLife(GroupPromises):
    @initialize(
        first=st.integers(1, 4),
        second=st.integers(1, 3),
        assignor=st.sampled_from(sorted(ASSIGNORS)),
        static=st.booleans(),
        members=st.integers(0, 3),
    )
    def begin(self, first: int, second: int, assignor: str, static: bool, members: int) -> None:
        self.catalog.create("t", first)
        self.catalog.create("u", second)
        for client in self.clients:
            client.assignor = assignor
            client.static = static and client.number % 2 == 0
        for number in range(members):
            self.join(number)

    # What the coordinator hears

    def send(self, client: Client, step: pb.GroupStep = pb.STAY) -> pb.GroupHeartbeatResponse | None:
        """None: refused, and the client knows."""
        try:
            return self.heartbeat(client.request(step))
        except UnknownMember:
            client.joined = False
            client.forget()
        except StaticIdInUse:
            assert client.static
        return None

    def heartbeat(self, request: pb.GroupHeartbeatRequest) -> pb.GroupHeartbeatResponse:
        answer = self.desk.heartbeat(request)
        self.note_holders()
        return answer

    def note_holders(self) -> None:
        """After every decision: a partition whose holder is another one is in another era."""
        group = self.desk.coordinator.state.groups.get(GROUP)
        now = dict(group.holders) if group is not None else {}
        for partition in now.keys() | self.holders.keys():
            if now.get(partition) != self.holders.get(partition):
                self.new_era(partition)
        self.holders = now
        for group_name, member_id in self.desk.woken:
            assert group_name == GROUP
            self.wake(member_id)
        self.desk.woken = set()

    def wake(self, member_id: str) -> None:
        """A held heartbeat is answered with what is true now; the answer is on its way."""
        for client in self.clients:
            if client.member_id == member_id and client.polling:
                client.polling = False
                try:
                    client.answers.append(self.desk.coordinator.assignment(GROUP, member_id))
                except UnknownMember:
                    pass

    def new_era(self, partition: PartitionId) -> None:
        self.eras[partition] = self.eras.get(partition, 0) + 1

    # Members

    @rule(number=who)
    def join(self, number: int) -> None:
        client = self.clients[number]
        if not client.joined:
            client.forget()
        answer = self.send(client, pb.JOIN)
        if answer is not None:
            client.joined = True
            client.take(answer)

    @rule(number=who)
    def join_from_scratch(self, number: int) -> None:
        """It takes itself for put out, but the coordinator does not."""
        client = self.pick(number)
        client.joined = False
        self.join(client.number)

    @rule(number=who, topics=st.sampled_from([("t",), ("u",), TOPICS, ("u", "new")]))
    def subscribe(self, number: int, topics: tuple[str, ...]) -> None:
        self.clients[number].topics = topics
        self.join(number)

    def pick(self, number: int) -> Client:
        """One that has joined, if there is one."""
        joined = [client for client in self.clients if client.joined] or self.clients
        return joined[number % len(joined)]

    @rule(number=who)
    def stay(self, number: int) -> None:
        self.stay_one(self.pick(number))

    def stay_one(self, client: Client) -> None:
        if client.joined and (answer := self.send(client)) is not None:
            client.take(answer)

    @rule(number=who)
    def stay_and_miss_the_answer(self, number: int) -> None:
        client = self.pick(number)
        if client.joined:
            self.send(client)

    @rule(number=who)
    def long_poll(self, number: int) -> None:
        client = self.pick(number)
        if client.joined and (answer := self.send(client)) is not None:
            if self.desk.coordinator.changed_for(GROUP, client.member_id, client.seen_epoch):
                client.answers.append(answer)
            else:
                client.polling = True

    @rule(number=who)
    def hear_a_late_answer(self, number: int) -> None:
        waiting = [client for client in self.clients if client.joined and client.answers]
        if waiting:
            client = waiting[number % len(waiting)]
            client.take(client.answers.pop(0))

    @rule(number=who)
    def let_go(self, number: int) -> None:
        slow = [client for client in self.clients if client.letting_go]
        if slow:
            self.let_go_one(slow[number % len(slow)])

    def let_go_one(self, client: Client) -> None:
        for partition in client.letting_go:
            client.owned.pop(partition, None)
        client.letting_go = set()

    @rule(number=who)
    def send_a_heartbeat_that_comes_late(self, number: int) -> None:
        client = self.pick(number)
        if client.joined:
            self.late_heartbeats.append(client.request())

    @precondition(lambda self: self.late_heartbeats)
    @rule(at=st.integers(0, 1000))
    def a_late_heartbeat_comes(self, at: int) -> None:
        try:
            self.heartbeat(self.late_heartbeats.pop(at % len(self.late_heartbeats)))
        except UnknownMember:
            pass

    @rule(number=who)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        if client.joined:
            self.send(client, pb.LEAVE)
            client.restart()

    @rule(number=who)
    def restart_static(self, number: int) -> None:
        client = self.clients[number]
        if client.joined and client.static and self.send(client, pb.LEAVE_FOR_A_WHILE) is not None:
            client.restart()
            client.topics = self.clients[number].topics

    @rule(number=who)
    def die(self, number: int) -> None:
        """Without a word; what it sent is still on its way."""
        self.clients[number].restart()

    @rule(seconds=st.sampled_from([0.001, 1.0, 4.0, 6.0, 12.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.wait(seconds)
        self.note_holders()

    # Commits

    def owner(self, number: int) -> Client:
        owners = [client for client in self.clients if client.owned] or self.clients
        return owners[number % len(owners)]

    def commit_of(self, client: Client, at: int, step: int) -> Sent | None:
        """`step` -2 and -1: a careless client that commits what lies behind."""
        if not client.owned:
            return None
        partition = sorted(client.owned)[at % len(client.owned)]
        given = client.owned[partition]
        position = client.position.get(partition)
        if position is None:
            position = self.committed.get(partition, 0)
        position = client.position[partition] = max(0, position + step)
        counter = client.counters[partition] = client.counters.get(partition, 0) + 1
        return self.sent(client.member_id, partition, given.epoch, counter, position, given.topic)

    def sent(self, member_id: str, partition: PartitionId, epoch: int, counter: int, offset: int, topic: str) -> Sent:
        commit = pb.OffsetCommit(
            topic=topic,
            topic_id=partition[0],
            partition=partition[1],
            epoch=epoch,
            counter=counter,
            offset=offset,
            metadata=str(counter),
        )
        request = pb.CommitOffsetsRequest(group=GROUP, member_id=member_id, commits=[commit])
        return Sent(request, partition, self.eras.get(partition, 0))

    def deliver(self, sent: Sent) -> None:
        before = len(self.desk.batches)
        try:
            codes = self.desk.commit(sent.request)
        except (UnknownMember, GroupNotEmpty):
            return
        applied = any(record.key.startswith(b"offset/") for records in self.desk.batches[before:] for record in records)
        if codes == [""]:
            done = self.desk.coordinator.state.groups[GROUP].offset_of(sent.partition)
            assert done is not None, "a commit was acknowledged, and nothing is committed"
            commit = sent.request.commits[0]
            overtaken = done.epoch == commit.epoch and done.counter > commit.counter  # a careless member went back
            assert sent.request.member_id or not overtaken, "a commit was acknowledged after one of another program"
            assert overtaken or (done.offset or 0) >= commit.offset, "a commit was acknowledged, and less is committed"
        if applied:
            assert codes == [""]
            assert sent.era == self.eras.get(sent.partition, 0), (
                "a commit of before its partition changed hands, or was reset, was applied"
            )
            commit = sent.request.commits[0]
            epoch, counter = self.counters.get(sent.partition, (0, 0))
            assert commit.epoch > epoch or commit.counter > counter, "a delayed commit was applied after a later one"
            self.counters[sent.partition] = (commit.epoch, commit.counter)

    @rule(number=who, at=st.integers(0, 10), step=steps)
    def commit(self, number: int, at: int, step: int) -> None:
        if (sent := self.commit_of(self.owner(number), at, step)) is not None:
            self.deliver(sent)

    @rule(number=who, at=st.integers(0, 10), step=steps)
    def send_a_commit_that_comes_late(self, number: int, at: int, step: int) -> None:
        if (sent := self.commit_of(self.owner(number), at, step)) is not None:
            self.late_commits.append(sent)

    @precondition(lambda self: self.late_commits)
    @rule(at=st.integers(0, 1000), again=st.booleans())
    def a_late_commit_comes(self, at: int, again: bool) -> None:
        sent = self.late_commits[at % len(self.late_commits)]
        if not again:
            self.late_commits.remove(sent)
        self.deliver(sent)

    @rule(topic=st.sampled_from(TOPICS), number=st.integers(0, 3), step=st.integers(0, 5), late=st.booleans())
    def commit_without_membership(self, topic: str, number: int, step: int, late: bool) -> None:
        found = self.desk.committed(GROUP, topic, number)
        if found.HasField("error"):
            return
        partition = PartitionId(found.topic_id, number)
        sent = self.sent("", partition, found.epoch, found.counter + 1, found.offset + step, topic)
        if late:
            self.late_commits.append(sent)
        else:
            self.deliver(sent)

    @rule(topic=st.sampled_from(TOPICS), number=st.integers(0, 3), step=st.integers(0, 5))
    def programs_without_membership_overtake_each_other(self, topic: str, number: int, step: int) -> None:
        """One reads the committed offset, another one commits twice, then the first one commits."""
        found = self.desk.committed(GROUP, topic, number)
        if found.HasField("error"):
            return
        partition = PartitionId(found.topic_id, number)
        overtaken = self.sent("", partition, found.epoch, found.counter + 1, found.offset + step, topic)
        for more in (1, 2):
            self.deliver(self.sent("", partition, found.epoch, found.counter + more, found.offset, topic))
        self.deliver(overtaken)

    @rule(number=who, at=st.integers(0, 10), step=steps)
    def commits_overtake_each_other(self, number: int, at: int, step: int) -> None:
        first = self.commit_of(self.owner(number), at, step)
        second = self.commit_of(self.owner(number), at, 0)
        for sent in (second, first):
            if sent is not None:
                self.deliver(sent)

    @precondition(lambda self: self.late_commits)
    @rule(at=st.integers(0, 1000), offset=st.none() | st.integers(0, 10))
    def reset_what_is_being_committed(self, at: int, offset: int | None) -> None:
        topic_id, number = self.late_commits[at % len(self.late_commits)].partition
        topic = self.catalog.by_id(topic_id)
        if topic is not None:
            self.reset_one(topic.name, number, offset)

    @rule(topic=st.sampled_from(TOPICS), number=st.integers(0, 3), offset=st.none() | st.integers(0, 10))
    def reset(self, topic: str, number: int, offset: int | None) -> None:
        self.reset_one(topic, number, offset)

    def reset_one(self, topic: str, number: int, offset: int | None) -> None:
        if self.desk.reset(GROUP, pb.OffsetReset(topic=topic, partition=number, offset=offset)) == [""]:
            partition = PartitionId(self.catalog.topics[topic].topic_id, number)
            self.may_go_back.add(partition)
            self.new_era(partition)
            self.note_holders()

    @rule()
    def delete_group(self) -> None:
        try:
            self.desk.decided(self.desk.coordinator.delete(GROUP, self.desk.now_ms))
        except (UnknownGroup, GroupNotEmpty):
            return
        self.everything_may_go_back()

    @rule()
    def wait_until_all_expires(self) -> None:
        there_was_one = GROUP in self.desk.coordinator.state.groups
        self.desk.wait(SESSION_MS / 1000 + RETENTION_MS / 1000 + self.desk.limits.expiry_check_s + 1)
        self.note_holders()
        assert GROUP not in self.desk.coordinator.state.groups
        if there_was_one:
            self.everything_may_go_back()

    def everything_may_go_back(self) -> None:
        for partition in (
            set(self.committed)
            | set(self.eras)
            | {PartitionId(t.topic_id, p) for t in self.catalog.topics.values() for p in range(9)}
        ):
            self.may_go_back.add(partition)
            self.new_era(partition)

    # Topics

    @rule(topic=st.sampled_from(TOPICS))
    def grow(self, topic: str) -> None:
        if topic in self.catalog.topics and self.catalog.topics[topic].partitions < 5:
            self.catalog.grow(topic, self.catalog.topics[topic].partitions + 1)

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 3))
    def remove_and_create_again(self, topic: str, partitions: int) -> None:
        old = self.catalog.topics[topic]
        self.catalog.remove(topic)
        self.desk.wait(0)
        self.note_holders()
        self.may_go_back |= {partition for partition in self.committed if partition[0] == old.topic_id}
        self.catalog.create(topic, partitions)

    # Coordinators

    @rule()
    def take_over(self) -> None:
        self.desk.take_over()
        self.after_takeover()

    @rule(ops=st.lists(st.tuples(who, st.integers(0, 3)), min_size=1, max_size=3), kept=st.integers(0, 3))
    def die_with_unwritten_decisions(self, ops: list[tuple[int, int]], kept: int) -> None:
        """No member has an answer yet; what was written of it is a prefix."""
        durable = len(self.desk.batches)
        for number, op in ops:
            client = self.clients[number]
            try:
                if op == 0 and (sent := self.commit_of(client, 0, 1)) is not None:
                    self.desk.commit(sent.request)
                elif op == 1:
                    self.desk.heartbeat(client.request(pb.JOIN))
                elif op == 2:
                    self.desk.heartbeat(client.request())
                else:
                    self.desk.wait(1.0)
            except (UnknownMember, StaticIdInUse):
                pass
        self.desk.woken = set()
        self.desk.take_over(min(len(self.desk.batches), durable + kept))
        for sent_partition in list(self.counters):
            self.counters[sent_partition] = (0, 0)  # some of these commits may have been written
        self.after_takeover()

    def after_takeover(self) -> None:
        for client in self.clients:
            client.polling = False
        self.batches_checked = -1
        self.note_holders()

    def members_present(self) -> set[str]:
        group = self.desk.coordinator.state.groups.get(GROUP)
        return set(group.members) if group is not None else set()

    @rule()
    def all_are_quick(self) -> None:
        """Then every partition that a member subscribes to has exactly one owner, who knows it."""
        before = self.members_present()
        for _ in range(6):
            for client in self.clients:
                if client.joined:
                    self.let_go_one(client)
                    self.stay_one(client)
            self.time_passes(0.5)
        present = self.members_present()
        if (
            not present
            or present != before
            or present != {client.member_id for client in self.clients if client.joined}
        ):
            return  # a member has died, and is not removed, or only just now
        names = {name for client in self.clients if client.joined for name in client.topics}
        wanted = {
            PartitionId(t.topic_id, p)
            for t in self.catalog.topics.values()
            if t.name in names
            for p in range(t.partitions)
        }
        owned = [partition for client in self.clients if client.joined for partition in client.owned]
        assert sorted(owned) == sorted(wanted), "not every partition has exactly one owner"
        assert self.desk.coordinator.describe(GROUP, self.desk.now_s).state == pb.STABLE
        woken = [
            c for c in self.clients if c.joined and self.desk.coordinator.changed_for(GROUP, c.member_id, c.seen_epoch)
        ]
        assert not woken, "nothing changes, but a heartbeat would not be held"
