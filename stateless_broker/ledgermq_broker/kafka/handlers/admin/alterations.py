"""Answer IncrementalAlterConfigs and AlterConfigs of topics: one call of the caller's API for each, so by its rules and
quotas.

brokers          their settings come from file, variables and flags: INVALID_REQUEST
share groups     have none that differ: what is in force may be set, all else gets INVALID_CONFIG
append, take off INVALID_CONFIG: the list of cleanup.policy is set whole
AlterConfigs     unsets what the request does not name, but never ends a legal hold that way
validate_only    the same checks, by the newest catalog
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ledgermq.errors import InvalidRequest, LedgerMQError, LegalHold
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi
from ledgermq.sources import Sources
from ledgermq_broker.kafka.handlers.admin.changes import Changes
from ledgermq_broker.kafka.handlers.admin.configs import GROUP, TOPIC, may_group, resource_code
from ledgermq_broker.kafka.handlers.admin.described import check_group
from ledgermq_broker.kafka.handlers.admin.living import living_topic
from ledgermq_broker.kafka.handlers.admin.topic_settings import SET, Change, changed, taken
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.wire.generated import alter_configs_response as replaced
from ledgermq_broker.kafka.wire.generated import incremental_alter_configs_response as altered
from ledgermq_broker.kafka.wire.messages import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, Api
from ledgermq_broker.settings.brokers import BrokerSettings
from ledgermq_ledger.topics.settings import NAMES

TIMEOUT_MS = 20_000
"""The requests name none; clients wait 30 s and more."""
HOLD = "legal.hold"


def answers(sources: Sources, settings: Callable[[], BrokerSettings]) -> Mapping[Api, Handler]:
    """Return the handler of each API. `settings()`: of this broker, as they are now."""

    async def alter(asked: Asked) -> Any:
        answer = altered.IncrementalAlterConfigsResponse()
        answer.responses = await _alter(asked, sources, settings(), altered.AlterConfigsResourceResponse, _step)
        return answer

    async def replace(asked: Asked) -> Any:
        answer = replaced.AlterConfigsResponse()
        answer.responses = await _alter(asked, sources, settings(), replaced.AlterConfigsResourceResponse, _replacement)
        return answer

    return {INCREMENTAL_ALTER_CONFIGS: alter, ALTER_CONFIGS: replace}


async def _alter(
    asked: Asked,
    sources: Sources,
    settings: BrokerSettings,
    kind: type[Any],
    change_of: Callable[[pb.TopicInfo, Sequence[Any]], Change],
) -> list[Any]:
    """Return an answer of the kind for each resource."""
    request = asked.message
    times = Counter((one.resource_type, one.resource_name) for one in request.resources)
    changes = Changes(TIMEOUT_MS)
    found = []
    for one in {(one.resource_type, one.resource_name): one for one in request.resources}.values():
        result = kind(resource_type=one.resource_type, resource_name=one.resource_name, error_message=None)
        try:
            if times[one.resource_type, one.resource_name] > 1:
                raise InvalidRequest(f"resource {one.resource_name!r} stands more than once in the request")
            if one.resource_type == GROUP:
                await _alter_group(asked.api, one, settings)
            elif one.resource_type == TOPIC:
                await _alter_topic(asked, one, sources, changes, change_of)
            else:
                raise InvalidRequest("only settings of topics are changed by requests; brokers have theirs from a file")
        except LedgerMQError as error:
            result.error_code, result.error_message = resource_code(one.resource_type, error), error.message
        found.append(result)
    return found


async def _alter_group(api: BrokerApi, one: Any, settings: BrokerSettings) -> None:
    await may_group(api, one.resource_name)
    _check_once(one.configs)
    check_group(((each.name, getattr(each, "config_operation", SET), each.value) for each in one.configs), settings)


async def _alter_topic(
    asked: Asked,
    one: Any,
    sources: Sources,
    changes: Changes,
    change_of: Callable[[pb.TopicInfo, Sequence[Any]], Change],
) -> None:
    info = await changes.make(lambda: living_topic(asked.api, one.resource_name))
    wish = _wish(info, change_of(info, one.configs), sources, dry_run=asked.message.validate_only)
    await changes.make(lambda: asked.api.alter_topic(wish))


def _step(info: pb.TopicInfo, configs: Sequence[Any]) -> Change:
    _check_once(configs)
    return changed((one.name, one.config_operation, one.value) for one in configs)


def _replacement(info: pb.TopicInfo, configs: Sequence[Any]) -> Change:
    """Return what makes these the only settings of the topic. Raises InvalidConfig, InvalidRequest, LegalHold."""
    _check_once(configs)
    wanted = taken((one.name, one.value) for one in configs)
    if HOLD not in wanted and info.settings.get(HOLD, "").lower() == "true":
        raise LegalHold(
            f"topic {info.name!r} is under legal hold, and the request does not name {HOLD}: name it, or change single"
            " settings (IncrementalAlterConfigs)"
        )
    return wanted, [name for name in info.settings if name in NAMES and name not in wanted]


def _check_once(configs: Sequence[Any]) -> None:
    name, times = Counter(one.name for one in configs).most_common(1)[0] if configs else ("", 0)
    if times > 1:
        raise InvalidRequest(f"setting {name!r} stands {times} times in the request")


def _wish(info: pb.TopicInfo, change: Change, sources: Sources, *, dry_run: bool) -> pb.AlterTopicRequest:
    """Return the call that changes a topic. One that changes nothing is only checked."""
    wanted, unset = change
    return pb.AlterTopicRequest(
        name=info.name,
        topic_id=info.topic_id,
        set=wanted,
        unset=unset,
        nonce=sources.random.getrandbits(128).to_bytes(16, "big"),
        dry_run=dry_run or not (wanted or unset),
    )
