"""What has to hold after every step of a random life of a group."""

from __future__ import annotations

from hypothesis.stateful import RuleBasedStateMachine, invariant

from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq_ledger.keys import PartitionId
from ledgermq_offsets.limits import GroupLimits
from tests.property.group_client import GROUP, Client, Sent
from tests.worlds.coordinators import Catalog, Desk, replayed

RETENTION_MS = 600_000
MEMBERS = 4


class GroupPromises(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog()
        limits = GroupLimits(retention_ms=RETENTION_MS, session_timeout_ms_min=1)
        self.desk = Desk(self.catalog, limits)
        self.clients = [Client(number) for number in range(MEMBERS)]
        self.late_heartbeats: list[pb.GroupHeartbeatRequest] = []
        self.late_commits: list[Sent] = []
        self.eras: dict[PartitionId, int] = {}
        self.holders: dict[PartitionId, str] = {}
        self.committed: dict[PartitionId, int] = {}
        self.counters: dict[PartitionId, tuple[int, int]] = {}
        self.may_go_back: set[PartitionId] = set()
        self.epoch_max = 0
        self.batches_checked = 0

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        group = self.desk.coordinator.state.groups.get(GROUP)
        members = group.members if group is not None else {}
        owners: dict[PartitionId, str] = {}
        for client in self.clients:
            if client.member_id not in members or members[client.member_id].away:
                continue  # put out: whatever it believes, it commits nothing
            for partition in client.owned:
                assert partition not in owners, f"{partition} is read by {owners[partition]} and {client.member_id}"
                owners[partition] = client.member_id
        held = [partition for member in members.values() for partition in member.held]
        assert len(held) == len(set(held))

    @invariant()
    def no_committed_offset_goes_back(self) -> None:
        group = self.desk.coordinator.state.groups.get(GROUP)
        now: dict[PartitionId, int] = {}
        if group is not None:
            now = {
                (t, p): v.offset for t, topic in group.offsets.items() for p, v in topic.items() if v.offset is not None
            }
        for partition, offset in self.committed.items():
            if partition not in self.may_go_back:
                assert now.get(partition, -1) >= offset, (
                    f"{partition}: {offset} was committed, now it is {now.get(partition)}"
                )
        self.committed = now
        self.may_go_back = set()

    @invariant()
    def epochs_never_go_back(self) -> None:
        group = self.desk.coordinator.state.groups.get(GROUP)
        epoch = max(self.desk.coordinator.state.floor, group.epoch if group is not None else 0)
        assert epoch >= self.epoch_max
        self.epoch_max = epoch

    @invariant()
    def the_log_is_the_state(self) -> None:
        if len(self.desk.batches) == self.batches_checked:
            return
        self.batches_checked = len(self.desk.batches)
        again = replayed(self.desk.batches, self.desk.limits, self.catalog)
        assert again.state.snapshot() == self.desk.coordinator.state.snapshot()
        cleaned: dict[bytes, bytes | None] = {
            record.key: record.value for records in self.desk.batches for record in records
        }
        from_snapshot = replayed([], self.desk.limits, self.catalog)
        for key, value in cleaned.items():
            if value is not None:
                from_snapshot.apply(key, value)
        assert from_snapshot.state.snapshot() == self.desk.coordinator.state.snapshot()
