"""Administer topics: create, list, describe, alter, delete; drain brokers.

Retries are safe: if the answer to an attempt was lost, the next attempt recognizes its effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta

from ledgermq.client.context import ClientContext
from ledgermq.client.messages.broker_clock import reported_us
from ledgermq.client.messages.descriptions import (
    AddedBundles,
    BundleLoads,
    ClusterDescription,
    TopicDescription,
    TopicPartition,
    check_topic_text,
    cluster_description,
    topic_description,
)
from ledgermq.client.messages.record import datetime_of
from ledgermq.durations import find_duration_ms
from ledgermq.errors import (
    DeadlineExceeded,
    InvalidConfig,
    InvalidRequest,
    OutcomeUnknown,
    RetriableError,
    TopicBeingDeleted,
    TopicExists,
    Unauthorized,
    Unavailable,
    UnknownTopic,
)
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import Connection
from ledgermq.protocol.status import error_from_proto
from ledgermq.runtime.tasks import all_of

CALLS_AT_ONCE = 16
NAME_PART_MAX = 249
BUNDLES_MIN = 2
"""Every cluster has them, so asking for them adds none: the answer is the controller's number."""


class Admin:
    def __init__(self, context: ClientContext) -> None:
        self._sources = context.sources
        self._connections = context.connections
        self._routing = context.routing

    async def create_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, object],
        *,
        if_not_exists: bool = False,
        wait: bool = False,
    ) -> TopicDescription:
        request = pb.CreateTopicRequest(
            name=check_topic_text(name),
            partitions=_whole("partitions", partitions),
            settings=setting_texts(settings),
            nonce=self._sources.new_id(),
        )
        attempts, backoff, deadline = 0, self._connections.backoff(), self._connections.deadline()

        async def create(connection: Connection) -> pb.TopicInfo:
            nonlocal attempts
            attempts += 1
            return (await connection.create_topic(request)).topic

        try:
            while True:
                try:
                    info = await self._connections.ask(create, deadline)
                    break
                except TopicBeingDeleted as error:
                    if not wait or not await backoff.pause(error.retry_after_ms, deadline):
                        raise
                    attempts = 0  # none of them has created it
        except TopicExists:
            if attempts == 1 and not if_not_exists:
                raise
            # An earlier attempt of this call may have created it. A broker that keeps nonces would have answered so;
            # without a nonce the topic looks as requested.
            found = await self._info(name, deleted=True)
            if found.deleted_ms:  # the error says how to bring it back
                raise
            info = found
            is_equal = dict(info.settings) == dict(request.settings) and partitions in (0, len(info.partitions))
            if not if_not_exists and (info.nonce or not is_equal):
                raise
        self._routing.learn(info)
        return topic_description(info)

    async def list_topics(
        self, *, deleted: bool = False, prefix: str = "", after: str = "", limit: int = 0
    ) -> list[TopicDescription]:
        request = pb.DescribeTopicsRequest(
            deleted=deleted, prefix=_name(prefix), after=_name(after), limit=_whole("limit", limit)
        )
        answer = await self._connections.ask(lambda at: at.describe_topics(request), self._connections.deadline())
        # A broker of an earlier release lists all living ones whatever was asked for.
        found = (info for info in answer.topics if bool(info.deleted_ms) == deleted and info.name > after)
        chosen = [topic_description(info) for info in found if not info.HasField("error")]
        return [topic for topic in chosen if topic.name.startswith(prefix)][: limit or None]

    async def topic_names(self) -> dict[str, int]:
        """Return the names of all topics that the caller may see, with their ids. It costs a fraction of
        `list_topics`. Raises Unavailable.
        """
        request = pb.DescribeTopicsRequest(names_only=True)
        answer = await self._connections.ask(lambda at: at.describe_topics(request), self._connections.deadline())
        return {info.name: info.topic_id for info in answer.topics if not info.HasField("error")}

    async def describe_topic(self, name: str) -> TopicDescription:
        deadline = self._connections.deadline()
        await self._routing.refresh(name, deadline)
        info = await self._info(name)
        self._routing.learn(info)
        return topic_description(info)

    async def _info(self, name: str, *, deleted: bool = False) -> pb.TopicInfo:
        request = pb.DescribeTopicsRequest(topics=[name], fresh=True, deleted=deleted)
        answer = await self._connections.ask(lambda at: at.describe_topics(request), self._connections.deadline())
        for info in answer.topics:
            if info.HasField("error"):
                raise error_from_proto(info.error)
            return info
        raise UnknownTopic(f"topic {name!r} does not exist")

    async def alter_topic(
        self,
        name: str,
        partitions: int,
        settings: Mapping[str, object],
        unset: Iterable[str],
        *,
        rebuild_table: bool = False,
    ) -> TopicDescription:
        request = pb.AlterTopicRequest(
            name=check_topic_text(name),
            partitions=_whole("partitions", partitions),
            set=setting_texts(settings),
            unset=[_text(setting) for setting in unset],
            nonce=self._sources.new_id(),
            rebuild_table=rebuild_table,
        )
        request.topic_id = await self._id_of(name)
        answer = await self._connections.ask(lambda at: at.alter_topic(request), self._connections.deadline())
        if rebuild_table and not answer.rebuilt:
            raise InvalidRequest(
                "the controller is a broker of an earlier release, which rebuilds no tables: upgrade it"
            )
        self._routing.learn(answer.topic)
        return topic_description(answer.topic)

    async def delete_topic(self, name: str, *, now: bool = False) -> datetime | None:
        try:
            topic_id = await self._id_of(check_topic_text(name))
        except TopicBeingDeleted:
            return None
        deleted = await self._delete(pb.DeleteTopicRequest(name=name, topic_id=topic_id, now=now))
        until_ms = deleted.kept_until_ms if deleted is not None else 0
        return datetime.fromtimestamp(until_ms / 1000, UTC) if until_ms else None

    async def delete_with_cuts(self, name: str) -> Sequence[str]:
        topic_id = await self._id_of(check_topic_text(name))
        deleted = await self._delete(pb.DeleteTopicRequest(name=name, topic_id=topic_id, now=True, with_cuts=True))
        if deleted is not None and deleted.with_cuts:
            return list(deleted.dropped_cuts)
        gone, see = f"topic {name!r} is deleted", "see `ledgermq cut list`, and drop them by `ledgermq cut drop`"
        if deleted is None:
            raise OutcomeUnknown(f"{gone}; whether the cuts that have it were dropped is unknown: {see}")
        raise InvalidRequest(f"{gone}, but the controller is of an earlier release, which drops no cuts with it: {see}")

    async def _delete(self, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse | None:
        """Return the answer; None if an earlier attempt, whose answer was lost, or another call deleted the topic."""
        attempts, answer = 0, None

        async def delete(connection: Connection) -> None:
            nonlocal attempts, answer
            attempts += 1
            with suppress(TopicBeingDeleted) if request.topic_id else nullcontext():
                answer = await connection.delete_topic(request)

        try:
            await self._connections.ask(delete, self._connections.deadline())
        except UnknownTopic:
            if attempts == 1 and not request.topic_id:
                raise
        self._routing.forget(request.name)
        return answer

    async def undelete_topic(self, name: str) -> TopicDescription:
        try:
            topic_id = await self._id_of(check_topic_text(name))
        except TopicBeingDeleted:  # a later topic of the name is not meant
            raise UnknownTopic(f"topic {name!r} cannot be brought back: it is deleted for good") from None
        request = pb.UndeleteTopicRequest(name=name, topic_id=topic_id, nonce=self._sources.new_id())
        answer = await self._connections.ask(lambda at: at.undelete_topic(request), self._connections.deadline())
        if answer.topic.deleted_ms:  # another call has deleted it again since an attempt of this one
            self._routing.forget(name)
        else:
            self._routing.learn(answer.topic)
        return topic_description(answer.topic)

    async def _id_of(self, name: str) -> int:
        """Return the id of the topic that has the name now, so that no attempt changes a later one. 0 if the caller
        may change it, and not see it. Raises UnknownTopic, TopicBeingDeleted, Unavailable.
        """
        try:
            return (await self._info(name, deleted=True)).topic_id
        except Unauthorized:
            return 0

    async def describe_cluster(self) -> ClusterDescription:
        return cluster_description(await self._describe(self._connections.deadline()))

    async def cluster_time(self) -> datetime | None:
        reported = await self._connections.ask(reported_us, self._connections.deadline())
        return datetime_of(reported) if reported > 0 else None

    async def add_bundles(self, count: int, *, dry_run: bool) -> AddedBundles:
        if type(count) is not int or count < 1:
            raise InvalidConfig(f"count must be a whole number of 1 or more, not {count!r}")
        deadline = self._connections.deadline()
        question = pb.AddBundlesRequest(bundles=BUNDLES_MIN, dry_run=True)
        now = (await self._connections.ask(lambda at: at.add_bundles(question), deadline)).before
        left = count
        while left:
            try:
                added, now = await self._more_bundles(now, left, deadline, dry_run=dry_run)
            except InvalidRequest as error:
                if left == count:
                    raise
                raise InvalidRequest(
                    f"{count - left} of {count} bundles were added, as another call added some at the same time:"
                    f" {error.message}"
                ) from error
            left -= added
        return AddedBundles(now - count, now)

    async def _more_bundles(self, now: int, count: int, deadline: float, *, dry_run: bool) -> tuple[int, int]:
        """Let the cluster, which has had `now` bundles, have at least `count` more. Return how many this added, and
        the number that is there.

        The answer says what the request changed, so what another call added in between is not counted. After an
        attempt without an answer that is not known: it may have changed all, so what is there counts.
        """
        wanted = min(now + count, 2**32 - 1)
        request = pb.AddBundlesRequest(bundles=wanted, dry_run=dry_run)
        attempts = 0

        async def add(connection: Connection) -> pb.AddBundlesResponse:
            nonlocal attempts
            attempts += 1
            return await connection.add_bundles(request)

        answer = await self._connections.ask(add, deadline)
        if answer.before >= wanted and not (answer.once and attempts == 1):
            return count, answer.bundles
        return answer.bundles - answer.before, answer.bundles

    async def move_partition(self, topic: str, partition: int, bundle: int, *, dry_run: bool) -> None:
        request = pb.MovePartitionRequest(
            topic=check_topic_text(topic),
            partition=_whole("partition", partition),
            bundle=_whole("bundle", bundle),
            dry_run=dry_run,
            nonce=self._sources.new_id(),
        )
        request.topic_id = await self._id_of(topic)
        await self._connections.ask(lambda at: at.move_partition(request), self._connections.deadline())

    async def describe_loads(self) -> list[BundleLoads]:
        deadline = self._connections.deadline()
        backoff = self._connections.backoff()
        while True:
            try:
                names = {topic_id: name for name, topic_id in (await self.topic_names()).items()}
                return [_loads(found, names) for found in await self._loads(deadline)]
            except RetriableError as error:
                if not await backoff.pause(error.retry_after_ms, deadline):
                    raise

    async def _loads(self, deadline: float) -> list[pb.BundleLoads]:
        """Return what the owners of all bundles have measured. Raises Unavailable if a bundle has no owner now."""
        cluster = await self._describe(deadline)
        found: dict[int, pb.BundleLoads] = {}

        async def ask(address: str) -> pb.ListLoadsResponse:
            request = pb.ListLoadsRequest()
            return await self._connections.ask_at(address, lambda at: at.list_loads(request), deadline)

        owners = sorted({bundle.owner for bundle in cluster.bundles if bundle.owner})
        for answer in await all_of(map(ask, owners), CALLS_AT_ONCE):
            for loads in answer.bundles:
                if loads.bundle not in found or found[loads.bundle].epoch < loads.epoch:
                    found[loads.bundle] = loads
        if missing := {bundle.bundle for bundle in cluster.bundles} - found.keys():
            raise Unavailable(f"the loads of the bundles {sorted(missing)} are not known, as no broker serves them now")
        return [found[bundle] for bundle in sorted(found)]

    async def drain_broker(self, broker: str, timeout_s: float | None) -> None:
        deadline = self._connections.deadline(timeout_s)
        address = await self._drain(broker, deadline, undrain=False)
        backoff = self._connections.backoff()
        while owned := await self._owned(address, deadline):
            if not await backoff.pause(None, deadline):
                raise DeadlineExceeded(
                    f"the broker at {address} still owns the bundles {owned}, or no broker owns them yet; it goes on"
                    " handing them over"
                )

    async def undrain_broker(self, broker: str) -> None:
        await self._drain(broker, self._connections.deadline(), undrain=True)

    async def _drain(self, broker: str, deadline: float, *, undrain: bool) -> str:
        """Return the address of the broker."""
        cluster = await self._describe(deadline)
        address = next((found.address for found in cluster.brokers if broker in (found.address, found.id)), "")
        if not address:
            known = ", ".join(found.address for found in cluster.brokers)
            raise InvalidRequest(f"there is no broker {broker!r}; the brokers are {known}")
        request = pb.DrainBrokerRequest(address=address, undrain=undrain, nonce=self._sources.new_id())
        backoff = self._connections.backoff()
        while True:
            try:
                answer = await self._connections.ask_at(address, lambda at: at.drain_broker(request), deadline)
            except RetriableError as error:
                if not await backoff.pause(error.retry_after_ms, deadline):
                    raise
            else:
                if answer.overtaken and not undrain:
                    raise InvalidRequest(f"the broker at {address} was drained, and another call has ended that since")
                return address

    async def _owned(self, address: str, deadline: float) -> list[int]:
        """Return the bundles that the broker owns, or that no broker owns."""
        cluster = await self._describe(deadline)
        return [bundle.bundle for bundle in cluster.bundles if bundle.owner in (address, "")]

    async def _describe(self, deadline: float) -> pb.DescribeClusterResponse:
        return await self._connections.ask(lambda at: at.describe_cluster(pb.DescribeClusterRequest()), deadline)


def _loads(loads: pb.BundleLoads, names: Mapping[int, str]) -> BundleLoads:
    partitions: dict[TopicPartition, int] = {}
    others = 0
    for each in loads.partitions:
        if each.topic_id in names:
            partitions[TopicPartition(names[each.topic_id], each.partition)] = each.load
        else:
            others += each.load
    return BundleLoads(loads.bundle, loads.measured_ms / 1000, partitions, others)


def _name(given: str) -> str:
    """Return a part of a name, as it may be sent. Raises InvalidConfig."""
    if len(given) > NAME_PART_MAX:
        raise InvalidConfig(f"a part of a topic's name has at most {NAME_PART_MAX} characters")
    return given


def _whole(name: str, number: int) -> int:
    if type(number) is not int or not 0 <= number < 2**32:
        raise InvalidConfig(f"{name} must be a whole number of 0 or more, not {number!r}")
    return number


def setting_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return topic settings as they are sent: text; true and false in small letters; durations in
    milliseconds.
    """
    return {_text(name): _text(_setting(str(name), value)) for name, value in settings.items()}


def _setting(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith((".ms", ".ms.max")):
        if isinstance(value, timedelta):
            return str(value // timedelta(milliseconds=1))
        if isinstance(value, str) and (found := find_duration_ms(value)) is not None:
            return str(found)
    return str(value)


def _text(given: object) -> str:
    try:
        return str(given).encode().decode()
    except UnicodeEncodeError as error:
        raise InvalidConfig(f"a topic setting must be valid Unicode text: {error}") from error
