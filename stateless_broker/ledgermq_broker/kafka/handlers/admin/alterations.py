"""Answer IncrementalAlterConfigs and AlterConfigs of topics: one call of the caller's API for each, so by its rules and
quotas.

brokers          their settings come from file, variables and flags: INVALID_REQUEST
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
from ledgermq.sources import Sources
from ledgermq_broker.kafka.handlers.admin.changes import Changes, topic_code
from ledgermq_broker.kafka.handlers.admin.configs import TOPIC
from ledgermq_broker.kafka.handlers.admin.living import living_topic
from ledgermq_broker.kafka.handlers.admin.topic_settings import Change, changed, taken
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.wire.generated import alter_configs_response as replaced
from ledgermq_broker.kafka.wire.generated import incremental_alter_configs_response as altered
from ledgermq_broker.kafka.wire.messages import ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS, Api
from ledgermq_ledger.topics.settings import NAMES

TIMEOUT_MS = 20_000
"""The requests name none; clients wait 30 s and more."""
HOLD = "legal.hold"


def answers(sources: Sources) -> Mapping[Api, Handler]:
    """Return the handler of each API."""

    async def alter(asked: Asked) -> Any:
        answer = altered.IncrementalAlterConfigsResponse()
        answer.responses = await _alter(asked, sources, altered.AlterConfigsResourceResponse, _step)
        return answer

    async def replace(asked: Asked) -> Any:
        answer = replaced.AlterConfigsResponse()
        answer.responses = await _alter(asked, sources, replaced.AlterConfigsResourceResponse, _replacement)
        return answer

    return {INCREMENTAL_ALTER_CONFIGS: alter, ALTER_CONFIGS: replace}


async def _alter(
    asked: Asked, sources: Sources, kind: type[Any], change_of: Callable[[pb.TopicInfo, Sequence[Any]], Change]
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
            if one.resource_type != TOPIC:
                raise InvalidRequest("only settings of topics are changed by requests; brokers have theirs from a file")
            info = await changes.make(lambda name=one.resource_name: living_topic(asked.api, name))  # type: ignore[misc]
            wish = _wish(info, change_of(info, one.configs), sources, dry_run=request.validate_only)
            await changes.make(lambda wish=wish: asked.api.alter_topic(wish))  # type: ignore[misc]
        except LedgerMQError as error:
            result.error_code, result.error_message = topic_code(error), error.message
        found.append(result)
    return found


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
