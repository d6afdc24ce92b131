"""The cluster's part of a client: brokers, bundles, and where partitions lie."""

from __future__ import annotations

from datetime import datetime

from ledgermq.client.admin.brokers.costs import CostReport, merged
from ledgermq.client.admin.brokers.reports import BrokerReport, Brokers, ConnectionDescription
from ledgermq.client.admin.rebalancing import MEASURED_S, Answers, RebalanceResult, rebalance
from ledgermq.client.admin.topics import Admin
from ledgermq.client.messages.descriptions import AddedBundles, BundleLoads, ClusterDescription
from ledgermq.errors import InvalidRequest
from ledgermq.protocol import ledgermq_pb2 as pb


class ClusterAdmin:
    """The calls of a client about brokers and bundles. Every call ends within the client's `timeout_s`."""

    def __init__(self, admin: Admin, brokers: Brokers) -> None:
        self._admin = admin
        self._brokers = brokers

    async def describe_cluster(self) -> ClusterDescription:
        return await self._admin.describe_cluster()

    async def cluster_time(self) -> datetime | None:
        """Return the cluster's time, by which delays count: a broker's estimate of the store's clock. None: the
        broker has no estimate yet. It needs no right. Raises Unauthenticated, Unavailable.
        """
        return await self._admin.cluster_time()

    async def add_bundles(self, count: int, *, dry_run: bool = False) -> AddedBundles:
        """Let the cluster have so many bundles more: as many more brokers can share its work. New partitions
        go to them first; those that exist stay where they are. A number of bundles never becomes less.

        Of two calls at the same time each adds its own number. A call that failed may have added its bundles: look
        at `describe_cluster` before you repeat it. If an answer is lost on the way, the call is sent again, and may
        then count what another call has added in between as its own. `dry_run`: only check. Raises InvalidConfig,
        InvalidRequest (too many), Unauthorized, and Unavailable while a broker of an earlier release runs.
        """
        return await self._admin.add_bundles(count, dry_run=dry_run)

    async def move_partition(self, topic: str, partition: int, bundle: int, *, dry_run: bool = False) -> None:
        """Move a partition to another bundle while it is written and read. Producers and consumers notice
        nothing; offsets, sequences and committed offsets go on.

        Return when the move is decided. Producers write to the new bundle a moment later, and
        `describe_topic` names the old one as `moving_from` until its files are handed over. Where the
        partition is in that bundle, or on its way there, nothing changes, so a call that failed may be
        repeated. What queue groups have finished goes along; what is leased at that moment is delivered again.
        `dry_run`: only check. Raises PartitionBusy (open transactions, timed messages of its topic or an
        exclusive producer keep it where it is), InvalidRequest (no such bundle), UnknownTopic,
        UnknownPartition, Unauthorized, and Unavailable while it still moves to another bundle, or a broker of
        an earlier release runs.
        """
        await self._admin.move_partition(topic, partition, bundle, dry_run=dry_run)

    async def describe_loads(self) -> list[BundleLoads]:
        """Return what each bundle costs its owner now, by partition, in the order of the bundles. Unlike
        `describe_cluster` it asks each owner.

        Raises Unauthorized (it needs the operation `cluster`), Unavailable while a bundle has no owner, and
        InvalidRequest if a broker of an earlier release runs, which it names.
        """
        return await self._admin.describe_loads()

    async def describe_brokers(self) -> list[BrokerReport]:
        """Return what each broker is and has: release, bundles, load, memory, settings. Each broker is asked; one that
        does not answer, or is of an earlier release, says so in `trouble`.

        Raises Unauthorized (it needs the operation `cluster`), Unavailable if no broker answers.
        """
        return await self._brokers.describe()

    async def describe_costs(self, topic: str = "") -> CostReport:
        """Return what requests to the store have cost since the brokers started, in dollars by topic and principal, and
        what topics keep there. Each broker is asked. `topic`: only this one.

        The price of a segment's PUT is divided among the topics in it by their bytes; what is for no topic is the
        cluster's. Prices are settings of the brokers. Raises Unauthorized (it needs the operation `cluster`),
        UnknownTopic, Unavailable while a broker does not answer, and InvalidRequest if a broker of an earlier release
        runs, which it names.
        """
        request = pb.ListCostsRequest(topic=topic)
        return merged(await self._brokers.each(self._brokers.deadline(), lambda at: at.list_costs(request)))

    async def list_connections(self) -> list[ConnectionDescription]:
        """Return who is connected: each caller on each connection, by principal, 10,000 at most. A caller is listed
        while it has a call under way, and for five minutes after its last one. Clients of the Kafka protocol are
        not in the list.

        Raises Unauthorized (it needs the operation `cluster`), Unavailable while a broker does not answer, and
        InvalidRequest if a broker of an earlier release runs, which it names.
        """
        return await self._brokers.connections()

    async def rebalance(
        self,
        *,
        dry_run: bool = False,
        max_moves: int | None = None,
        at_once: int = 1,
        measured_s: float = MEASURED_S,
    ) -> RebalanceResult:
        """Move partitions between bundles until the loads of the bundles are even within 20 %, and wait until the
        moves have ended, as long as that takes.

        It moves as little of the load as it can, and nothing if the loads are even; where there is no load, it evens
        out the numbers of partitions. Partitions that `move_partition` would refuse now stay. Cancelled, it leaves
        nothing behind: partitions that are on their way go on, and count as arrived in the next call.

        `dry_run`: only return what would move. `max_moves`: those that help most. `at_once`: how many partitions
        leave a bundle at the same time. `measured_s`: wait until loads have been measured for so many seconds.
        Raises InvalidRequest, Unauthorized (it needs the operation `cluster`), and Unavailable while brokers do not
        answer.
        """
        if at_once < 1 or (max_moves is not None and max_moves < 1) or measured_s < 0:
            raise InvalidRequest(
                f"max_moves={max_moves}, at_once={at_once}, measured_s={measured_s}: give at least one move, one at a"
                " time, and no negative time"
            )
        return await rebalance(
            self._admin, measured_s, at_once, max_moves, lambda line: None, Answers(), dry_run=dry_run
        )

    async def drain_broker(self, broker: str, *, timeout_s: float | None = None) -> None:
        """Let a broker hand over all that it owns and take nothing new, until `undrain_broker` or its next
        start. Return when it owns nothing, and other brokers own all bundles. Programs notice nothing.

        `broker`: its address or id. Raises InvalidRequest (there is no such broker, or no other one, or
        another call has ended the drain), DeadlineExceeded (it goes on handing over), Unauthorized, Unavailable.
        """
        await self._admin.drain_broker(broker, timeout_s)

    async def undrain_broker(self, broker: str) -> None:
        """Let a drained broker take its share of the bundles again; it does within seconds after this
        returns. Raises InvalidRequest, Unauthorized, Unavailable.
        """
        await self._admin.undrain_broker(broker)
