"""Answer DescribeConfigs: of topics what our own DescribeTopics shows, to those who may describe them; of the broker
that is asked a few names; of any share group, which need not exist, what counts for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ledgermq.errors import InvalidRequest, LedgerMQError, UnknownTopic
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq_broker.kafka.brokers import Brokers
from ledgermq_broker.kafka.handlers.admin.changes import topic_code
from ledgermq_broker.kafka.handlers.admin.described import of_broker, of_group, of_topic
from ledgermq_broker.kafka.handlers.admin.living import living
from ledgermq_broker.kafka.handlers.asked import Asked, Handler, named_topics
from ledgermq_broker.kafka.handlers.groups.membership import group_code
from ledgermq_broker.kafka.handlers.groups.names import inside
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import describe_configs_request as asked_configs
from ledgermq_broker.kafka.wire.generated import describe_configs_response as described
from ledgermq_broker.kafka.wire.messages import DESCRIBE_CONFIGS, Api
from ledgermq_broker.settings.brokers import BrokerSettings

TOPIC, BROKER, GROUP = 2, 4, 32
RESOURCES_MAX = 5_000
"""Topics and brokers that one request names: an answer has some 2 KiB for each, and 6 KiB with synonyms."""


def answers(brokers: Brokers, settings: Callable[[], BrokerSettings]) -> Mapping[Api, Handler]:
    """Return the handler of each API. `settings()`: of this broker, as they are now."""

    async def describe(asked: Asked) -> Any:
        return await _describe(asked, brokers, settings())

    return {DESCRIBE_CONFIGS: describe}


async def _describe(asked: Asked, brokers: Brokers, settings: BrokerSettings) -> described.DescribeConfigsResponse:
    request: asked_configs.DescribeConfigsRequest = asked.message
    wanted = {(one.resource_type, one.resource_name): one for one in request.resources}
    too_many = len(wanted) > RESOURCES_MAX
    names = [name for kind, name in wanted if kind == TOPIC]
    infos = await _infos(asked.api, [] if too_many else names)
    answer = described.DescribeConfigsResponse()
    for (kind, name), one in wanted.items():
        found = described.DescribeConfigsResult(resource_type=kind, resource_name=name, error_message=None)
        chosen = frozenset(one.configuration_keys or ())
        try:
            if too_many:
                raise InvalidRequest(f"at most {RESOURCES_MAX} resources in one request, not {len(wanted)}")
            if kind == TOPIC:
                info = _info(infos, name)
                found.configs = of_topic(info, settings, chosen, synonyms=request.include_synonyms)
            elif kind == GROUP:
                await may_group(asked.api, name)
                found.configs = of_group(settings, chosen, synonyms=request.include_synonyms)
            else:
                found.configs = _of_broker(kind, name, brokers, settings, chosen, synonyms=request.include_synonyms)
        except LedgerMQError as error:
            found.error_code, found.error_message = resource_code(kind, error), error.message
        answer.results.append(found)
    return answer


async def may_group(api: BrokerApi, name: str) -> None:
    """Raises Unauthorized, InvalidGroupName and others."""
    await api.find_coordinator(pb.FindCoordinatorRequest(group=inside(name)))


def resource_code(kind: int, error: LedgerMQError) -> Code:
    """Return the code of a resource that cannot be described or changed."""
    return group_code(error) if kind == GROUP else topic_code(error)


def _info(infos: Mapping[str, pb.TopicInfo | LedgerMQError], name: str) -> pb.TopicInfo:
    info = infos.get(name)
    if info is None:
        raise UnknownTopic(f"topic {name!r} does not exist")
    if isinstance(info, LedgerMQError):
        raise info
    return living(info)


async def _infos(api: BrokerApi, names: list[str]) -> dict[str, pb.TopicInfo | LedgerMQError]:
    """Return what was answered for each topic, as the controller knows it now."""
    try:
        return dict(await named_topics(api, names, fresh=True))
    except LedgerMQError as error:
        return dict.fromkeys(names, error)


def _of_broker(
    kind: int, name: str, brokers: Brokers, settings: BrokerSettings, chosen: Collection[str], *, synonyms: bool
) -> list[described.DescribeConfigsResourceResult]:
    if kind != BROKER:
        raise InvalidRequest(
            f"topics ({TOPIC}), brokers ({BROKER}) and groups ({GROUP}) have settings here, resource type {kind} has"
            " none"
        )
    if not name:
        return []  # brokers share no settings that a client could change
    if name != str(brokers.me):
        raise InvalidRequest(f"this is broker {brokers.me}, and only broker {name!r} itself can show its settings")
    return of_broker(brokers.me, settings, chosen, synonyms=synonyms)
