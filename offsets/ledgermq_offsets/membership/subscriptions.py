"""Check subscriptions, and find the topics that each one means now.

Patterns are RE2 (google-re2): matching takes time linear in the name, whatever the pattern. A
pattern that needs too much memory is refused when it is compiled, and one with a long program when
a member names it, so no member can block a coordinator.
"""

from __future__ import annotations

import re2

from ledgermq.errors import InvalidRequest
from ledgermq.filters.filter import ALL, CHARS_MAX
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.naming.names import NAME_CHARS_MAX
from ledgermq_ledger.keys import check_topic_name
from ledgermq_offsets.assignors.choose import ASSIGNORS, DEFAULT
from ledgermq_offsets.limits import GroupLimits
from ledgermq_offsets.names import check_member_name
from ledgermq_offsets.state.records import Subscription
from ledgermq_offsets.topics import TopicSize, TopicsView

FILTER_CHARS_MAX = 2 * CHARS_MAX
"""Longest text of a filter in a subscription: written uniformly, it may be longer than the program's."""
PATTERN_BYTES_MAX = 1024 * 1024
"""Memory that one compiled pattern may take."""
PATTERN_PROGRAM_MAX = 2_000
"""Steps of a compiled pattern. With some 5,000, RE2 has no room for its automaton, and a name takes it milliseconds."""


def read_subscription(asked: pb.GroupSubscription, limits: GroupLimits) -> Subscription:
    """Return the subscription with its defaults. Raises InvalidRequest, InvalidTopicName."""
    if bool(asked.topics) == bool(asked.topic_pattern):
        raise InvalidRequest("a member subscribes either to topics or to a pattern, not to both")
    return any_subscription(asked, limits)


def any_subscription(asked: pb.GroupSubscription, limits: GroupLimits) -> Subscription:
    """Return a subscription that may have topics, a pattern, both or none. Raises as `read_subscription`."""
    if len(asked.topics) > limits.topics_max:
        raise InvalidRequest(
            f"a subscription names at most {limits.topics_max} topics, this one names {len(asked.topics)}; use a"
            " pattern for more"
        )
    if asked.topic_pattern:
        check_pattern(asked.topic_pattern, limits)
    if asked.assignor and asked.assignor not in ASSIGNORS:
        raise InvalidRequest(f"there is no assignor {asked.assignor[:100]!r}; choose one of {', '.join(ASSIGNORS)}")
    if asked.instance_id:
        check_member_name(asked.instance_id, "instance id")
    for what, text in (("rack", asked.rack), ("client id", asked.client_id), ("host", asked.kafka_host)):
        if len(text) > NAME_CHARS_MAX:
            raise InvalidRequest(f"a {what} has at most {NAME_CHARS_MAX} characters, this one has {len(text)}")
    if len(asked.filter) > FILTER_CHARS_MAX:
        raise InvalidRequest(
            f"a filter has at most {FILTER_CHARS_MAX} characters, this one has {len(asked.filter)}: shorten it"
        )
    subscription = Subscription(
        topics=tuple(sorted({check_topic_name(name) for name in asked.topics})),
        topic_pattern=asked.topic_pattern,
        assignor=asked.assignor or DEFAULT,
        instance_id=asked.instance_id,
        rack=asked.rack,
        client_id=asked.client_id,
        session_timeout_ms=_within(
            "session time-out",
            asked.session_timeout_ms or limits.session_timeout_ms,
            limits.session_timeout_ms_min,
            limits.session_timeout_ms_max,
        ),
        rebalance_timeout_ms=_within(
            "rebalance time-out",
            asked.rebalance_timeout_ms or limits.rebalance_timeout_ms,
            1,
            limits.rebalance_timeout_ms_max,
        ),
        filter=asked.filter or ALL,  # a member that names none is of a release without filters, or has none
        kafka_host=asked.kafka_host,
    )
    if (size := subscription.size_bytes) > limits.subscription_bytes_max:
        raise InvalidRequest(f"a subscription has at most {limits.subscription_bytes_max} bytes, this one has {size}")
    return subscription


def _within(what: str, value_ms: int, low_ms: int, high_ms: int) -> int:
    if not low_ms <= value_ms <= high_ms:
        raise InvalidRequest(f"the {what} has to be from {low_ms} to {high_ms} ms, not {value_ms}")
    return value_ms


def check_pattern(pattern: str, limits: GroupLimits) -> None:
    """Check a pattern that a member names. Raises InvalidRequest."""
    if (steps := compile_pattern(pattern, limits).programsize) > PATTERN_PROGRAM_MAX:
        raise InvalidRequest(
            f"topic pattern {pattern[:100]!r} takes {steps} steps, and at most {PATTERN_PROGRAM_MAX} are allowed: name"
            " fewer repetitions"
        )


def compile_pattern(pattern: str, limits: GroupLimits) -> re2._Regexp:
    """Compile a topic pattern. Raises InvalidRequest."""
    if len(pattern) > limits.pattern_chars_max:
        raise InvalidRequest(
            f"a topic pattern has at most {limits.pattern_chars_max} characters, this one has {len(pattern)}"
        )
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = PATTERN_BYTES_MAX
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else str(error)
        raise InvalidRequest(f"topic pattern {pattern!r} is not a valid RE2 expression: {why}") from error


class Meanings:
    """The topics of each subscription, cached for one version of the catalog: members of a group
    mostly subscribe alike.
    """

    def __init__(self, view: TopicsView, limits: GroupLimits) -> None:
        self._view = view
        self._limits = limits
        self._version = -1
        self._known: dict[tuple[tuple[str, ...], str], tuple[TopicSize, ...]] = {}

    def topics(self, subscription: Subscription) -> tuple[TopicSize, ...]:
        """Return the topics of a subscription, ascending by id. Names of topics that do not exist
        yet are left out.
        """
        if self._view.version != self._version:
            self._version = self._view.version
            self._known = {}
        key = (subscription.topics, subscription.topic_pattern)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._limits.members_max:
                self._known = {}  # members that have left may have left many entries behind
            found = self._known[key] = tuple(sorted(self._look(subscription)))
        return found

    def _look(self, subscription: Subscription) -> list[TopicSize]:
        names = set(subscription.topics)
        if subscription.topic_pattern:
            pattern = compile_pattern(subscription.topic_pattern, self._limits)
            names.update(name for name in self._view.names() if pattern.fullmatch(name))
        return [topic for topic in map(self._view.by_name, names) if topic is not None]
