"""The handlers of all APIs but Produce and Fetch, which keep something for a connection: the only list."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ledgermq.sources import Sources
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers import log_dirs
from ledgermq_broker.kafka.handlers.admin import alterations, configs, records, topics
from ledgermq_broker.kafka.handlers.asked import Handler
from ledgermq_broker.kafka.handlers.groups import committed, consumer, listing, membership, share, share_offsets
from ledgermq_broker.kafka.handlers.groups.share_members import ShareMembers
from ledgermq_broker.kafka.handlers.groups.share_offsets import ShareOffsetsHandler
from ledgermq_broker.kafka.handlers.metadata import MetadataHandler
from ledgermq_broker.kafka.handlers.offsets import OffsetsHandler
from ledgermq_broker.kafka.handlers.security import acls, quotas, scram
from ledgermq_broker.kafka.handlers.shares.fetching import ShareHandler
from ledgermq_broker.kafka.handlers.transactions import operators, producers
from ledgermq_broker.kafka.wire.messages import (
    DESCRIBE_CLUSTER,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    SHARE_ACKNOWLEDGE,
    SHARE_FETCH,
    Api,
)
from ledgermq_broker.settings.brokers import BrokerSettings


def handlers(
    brokers: Brokers,
    sources: Sources,
    settings: Callable[[], BrokerSettings],
    shares: ShareHandler,
    members: ShareMembers,
) -> Mapping[Api, Handler]:
    """Return the handler of each API for one connection. `settings()`: of this broker, as they are now. `shares`: what
    the connection holds. `members`: of share groups, which all connections share.
    """
    metadata, offsets = MetadataHandler(brokers), OffsetsHandler()
    of_shares = ShareOffsetsHandler(brokers, members, sources)

    return {
        DESCRIBE_CLUSTER: lambda asked: metadata.cluster(asked.message),
        METADATA: lambda asked: metadata.answer(asked.api, asked.message, asked.version),
        LIST_OFFSETS: lambda asked: offsets.list_offsets(asked.api, asked.message, asked.version),
        OFFSET_FOR_LEADER_EPOCH: lambda asked: offsets.epochs(asked.api, asked.message, asked.version),
        **producers.answers(sources),
        **operators.answers(sources.now_us),
        **membership.answers(brokers),
        **consumer.answers(brokers, sources),
        **committed.answers(),
        SHARE_FETCH: shares.fetch,
        SHARE_ACKNOWLEDGE: shares.acknowledge,
        **share.answers(brokers, members),
        **share_offsets.answers(of_shares),
        **listing.answers(brokers, members, of_shares),
        **records.answers(),
        **topics.answers(brokers, sources),
        **alterations.answers(sources, settings),
        **configs.answers(brokers, settings),
        **log_dirs.answers(brokers),
        **acls.answers(sources),
        **quotas.answers(sources),
        **scram.answers(sources),
    }
