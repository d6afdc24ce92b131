"""The coordinator of one group: finds it as `ledgermq.client.connection.coordinator` does."""

from __future__ import annotations

from ledgermq.client.connection import coordinator
from ledgermq.client.connection.connections import Connections
from ledgermq.protocol import ledgermq_pb2 as pb


class Coordinator(coordinator.Coordinator):
    """`group`: its name."""

    def __init__(self, connections: Connections, group: str) -> None:
        super().__init__(connections, f"group {group!r}")
        self.group = group

    async def leave(self, member_id: str, step: pb.GroupStep, deadline: float, *, once: bool = False) -> None:
        """Leave the group. `once`: without retries."""
        request = pb.GroupHeartbeatRequest(group=self.group, member_id=member_id, step=step)
        ask = self.ask_once if once else self.ask
        await ask(lambda at: at.group_heartbeat(request), deadline)
