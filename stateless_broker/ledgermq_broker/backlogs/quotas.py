"""Hold the partitions of this broker to the backlog quotas of their topics.

The backlog of a partition is what lies between the lowest offset that a group has committed in it and its
end. The owner of the partition measures it every few seconds, and asks the coordinators for the lowest
commits; queue groups are in its own bundle. Between two checks it judges by the last one.

    backlog.quota.policy         above the quota
    producer_request_hold        batches get RESOURCE_EXHAUSTED with the time to come back: producers wait
    producer_exception           batches get BACKLOG_QUOTA_EXCEEDED, which no producer retries
    consumer_backlog_eviction    the oldest records are deleted, down to nine tenths of the quota

A partition in which no group has committed anything has no backlog. Partitions without a quota, and those
that have not changed since they were found below it, cost nothing. No answer changes a verdict unless all
coordinators have answered, so a coordinator that is being moved neither stops producers nor deletes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ledgermq.errors import BacklogQuotaExceeded, LedgerMQError, ResourceExhausted
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.backlogs.counts import BacklogCounts
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.cluster.ownership import Ownership
from ledgermq_broker.groups.groups import Groups
from ledgermq_broker.logs import get_logger
from ledgermq_broker.metadata.followed import Metadata
from ledgermq_broker.queues.shares import Shares
from ledgermq_ledger import keys
from ledgermq_ledger.keys import PartitionId
from ledgermq_ledger.topics.settings import CONSUMER_BACKLOG_EVICTION, PRODUCER_EXCEPTION
from ledgermq_ledger.topics.topic import Topic
from ledgermq_ledger.view.backlog import Backlog

CHECK_S = 5.0
ASK_S_MAX = 3.0
HOLD_MS = 1000
"""When a producer that is held comes back."""
EVICTED_SHARE = 0.1
"""Eviction leaves this share of the quota free, so that not every check has to delete something."""

log = get_logger(__name__)

Slowest = dict[PartitionId, tuple[int, str]]
"""The lowest offset of each partition, and the group that has it."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A partition as the last check found it. `excess`: how it exceeds its quota, "" if it does not."""

    owner: BundleOwner
    topic: Topic
    end: int
    backlog_bytes: int
    excess: str

    def is_quiet(self, owner: BundleOwner, topic: Topic, end: int) -> bool:
        """Return whether another check would find the same: time alone exceeds no quota."""
        is_same = owner is self.owner and topic.version == self.topic.version and end == self.end
        return is_same and not self.excess and (topic.settings.backlog_quota_ms < 0 or not self.backlog_bytes)


class Backlogs:
    """`broker(address)`: the broker at this address, which may be this one. `now_us()`: a time that both the
    store's clock and this machine's have reached; None while it is not known.
    """

    def __init__(
        self,
        metadata: Metadata,
        ownership: Ownership,
        broker: Callable[[str], BrokerApi],
        groups: Groups,
        shares: Shares,
        now_us: Callable[[], int | None],
        counts: BacklogCounts,
    ) -> None:
        self.checked: dict[PartitionId, Checked] = {}
        self._metadata = metadata
        self._ownership = ownership
        self._broker = broker
        self._groups = groups
        self._shares = shares
        self._now_us = now_us
        self._counts = counts
        self._has_topics = asyncio.Event()

    def check_batch(self, topic: Topic, partition: int) -> None:
        """Raise ResourceExhausted or BacklogQuotaExceeded if a batch of this partition has to wait or is refused."""
        if not topic.settings.has_backlog_quota or topic.settings.backlog_quota_policy == CONSUMER_BACKLOG_EVICTION:
            return
        found = self.checked.get(PartitionId(topic.id, partition))
        if found is None or not found.excess or found.owner.lost is not None:
            return
        policy = topic.settings.backlog_quota_policy
        self._counts.refused(topic.name, policy)
        if policy == PRODUCER_EXCEPTION:
            raise BacklogQuotaExceeded(found.excess)
        raise ResourceExhausted(found.excess, retry_after_ms=HOLD_MS)

    def catalog_changed(self) -> None:
        if self._metadata.catalog.bounded:
            self._has_topics.set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self._has_topics.wait()
            self._has_topics.clear()
            while self._metadata.catalog.bounded:
                try:
                    await self.check()
                except LedgerMQError as error:
                    log.info("backlogs not checked", error=error.message)
                except Exception:  # a broker serves on without its quotas
                    log.exception("backlogs not checked")
                await asyncio.sleep(CHECK_S)
            self.checked = {}

    async def check(self) -> None:
        """Check the partitions of this broker once, if something has changed since the last time."""
        here = {PartitionId(topic.id, number): (topic, owner) for topic, number, owner in self._owned()}
        self.checked = {key: found for key, found in self.checked.items() if key in here}
        due = []
        unloaded = self._unloaded()
        for key, (topic, owner) in here.items():
            before = self.checked.get(key)
            if owner.bundle in unloaded:
                continue
            if before is None or not before.is_quiet(owner, topic, owner.durable_end(topic, key.partition)):
                due.append(key)
        if not due:
            return
        slowest = await self._slowest(frozenset(key.topic_id for key in due))
        if slowest is None:
            return
        for key in due:
            topic, owner = here[key]
            try:
                self.checked[key] = await self._check(key, topic, owner, slowest.get(key))
            except LedgerMQError as error:
                log.info("backlog not measured", topic=topic.name, partition=key.partition, error=error.message)

    def _owned(self) -> Iterator[tuple[Topic, int, BundleOwner]]:
        for topic in list(self._metadata.catalog.bounded.values()):
            for bundle, owner in self._ownership.opened.items():
                if owner.lost is None:
                    for partition in topic.partitions_in(bundle):
                        yield topic, partition, owner

    def _unloaded(self) -> set[int]:
        """Return the bundles whose queue groups are not known yet."""
        topic = self._metadata.catalog.topics_by_name.get(keys.SHARES_TOPIC)
        return set() if topic is None else set(topic.bundles) - {queues.bundle for queues in self._shares.served()}

    async def _check(
        self, key: PartitionId, topic: Topic, owner: BundleOwner, slowest: tuple[int, str] | None
    ) -> Checked:
        end = owner.durable_end(topic, key.partition)
        if slowest is None or slowest[0] >= end:
            return Checked(owner, topic, end, 0, "")
        backlog = await owner.backlog(topic, key.partition, slowest[0])
        excess = self._excess(topic, key.partition, backlog, slowest[1])
        if excess and topic.settings.backlog_quota_policy == CONSUMER_BACKLOG_EVICTION:
            await self._evict(topic, key.partition, owner, backlog, slowest[1])
        return Checked(owner, topic, end, backlog.size_bytes, excess)

    def _excess(self, topic: Topic, partition: int, backlog: Backlog, group: str) -> str:
        """Return how a backlog exceeds the quota of its topic; "" if it does not."""
        what = f"topic {topic.name!r} partition {partition}: group {group!r} is"
        advice = "let the group catch up, delete it if no program uses it, or raise the quota of the topic"
        bytes_max, ms_max = topic.settings.backlog_quota_bytes, topic.settings.backlog_quota_ms
        if 0 <= bytes_max < backlog.size_bytes:
            return f"{what} {backlog.size_bytes} bytes behind, more than backlog.quota.bytes={bytes_max}: {advice}"
        now_us, oldest_us = self._now_us(), backlog.oldest_us
        if ms_max >= 0 and now_us is not None and oldest_us is not None and now_us - oldest_us > ms_max * 1000:
            age_ms = (now_us - oldest_us) // 1000
            return f"{what} {age_ms} ms behind, more than backlog.quota.ms={ms_max}: {advice}"
        return ""

    async def _evict(self, topic: Topic, partition: int, owner: BundleOwner, backlog: Backlog, group: str) -> None:
        """Delete the oldest records, until little more than the quota is left. Raises LegalHold, the store's errors."""
        bytes_max, ms_max, now_us = topic.settings.backlog_quota_bytes, topic.settings.backlog_quota_ms, self._now_us()
        kept_bytes = None if bytes_max < 0 else round(bytes_max * (1 - EVICTED_SHARE))
        since_us = None if ms_max < 0 or now_us is None else now_us - round(ms_max * 1000 * (1 - EVICTED_SHARE))
        before = backlog.first_within(kept_bytes, since_us)
        outcome = (await owner.delete_records(topic, {partition: before}, dry_run=False))[partition]
        if isinstance(outcome, LedgerMQError):
            raise outcome
        log.warning("backlog evicted", topic=topic.name, partition=partition, group=group, log_start=outcome.log_start)
        self._counts.evicted(topic.name, outcome.log_start - max(backlog.offset, outcome.log_start_before))

    async def _slowest(self, topic_ids: frozenset[int]) -> Slowest | None:
        """Return the lowest commit of each partition; None if it is not known of all groups."""
        slowest: Slowest = {}
        offsets = self._metadata.catalog.topics_by_name.get(keys.OFFSETS_TOPIC)
        if offsets is not None:
            missing = set(range(offsets.partitions))
            request = pb.SlowestCommitsRequest(topic_ids=sorted(topic_ids))
            owners = {self._ownership.address_of(bundle) for bundle in set(offsets.bundles)}
            addresses = sorted(owners - {""})
            for answer in await asyncio.gather(*(self._ask(address, request) for address in addresses)):
                missing -= set(answer.coordinated)
                for commit in answer.commits:
                    _note(slowest, PartitionId(commit.topic_id, commit.partition), commit.offset, commit.group)
            if missing:
                log.info("backlogs not checked: commits of some groups are not known", partitions=sorted(missing))
                return None
        for queues in self._shares.served():
            for share, start in queues.starts():
                if share.topic_id in topic_ids:
                    _note(slowest, PartitionId(share.topic_id, share.partition), start, share.group)
        return slowest

    async def _ask(self, address: str, request: pb.SlowestCommitsRequest) -> pb.SlowestCommitsResponse:
        """Return a broker's answer, an empty one if it does not answer in time."""
        try:
            async with asyncio.timeout(ASK_S_MAX):
                return await self._broker(address).slowest_commits(request)
        except (LedgerMQError, TimeoutError):
            return pb.SlowestCommitsResponse()


def _note(slowest: Slowest, key: PartitionId, offset: int, group: str) -> None:
    slowest[key] = min((offset, group), slowest.get(key, (offset, group)))
