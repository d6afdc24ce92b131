"""A handler as a program declares it, and its counts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from ledgermq.client.groups.assignment import Topics, check_group, check_rule, topics_of
from ledgermq.client.groups.handlers.lanes import Ordering
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.settings import GroupSettings, settings_from
from ledgermq.errors import InvalidConfig
from ledgermq.hints import nearest

HandlerFunction = Callable[[GroupMessage], Awaitable[object] | object]
OnFailure = Callable[[GroupMessage, Exception, int], Awaitable[object] | object]
"""(message, error, attempt): the error that the handler raised, and the number of calls by now,
from 1 on.
"""

CONCURRENCY_MAX = 100_000

_ANY_TIME = datetime.fromtimestamp(0, UTC)
"""`start` is only checked here; an age in it counts from when the handler begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """`consumer`: settings of the member (see `GroupSettings`), and `start`."""

    topics: Topics
    group: str
    concurrency: int = 1
    """Messages that are handled at the same time."""
    ordered_by: Ordering = "partition"
    """What is handled one by one, each after the one before has succeeded: the messages of a
    partition, those of one key, or nothing (None).
    """
    executor: Executor | None = None
    """Runs functions that are not asynchronous; None: the event loop's default threads."""
    timeout_s: float | None = None
    """An asynchronous call that takes longer has failed."""
    retry_ms_first: int = 200
    retry_ms_max: int = 30_000
    """Waits before a failed message is handled again double from the first to the largest, with
    jitter.
    """
    waiting_max: int = 256
    """Messages of a partition that are handed out and wait for their turn; from here on the
    partition is not read.
    """
    on_failure: OnFailure | None = None
    """Called, and awaited if asynchronous, after every failed attempt. A message that it
    acknowledges is finished; any other is handled again, without end. None: a warning is logged."""
    consumer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        topics_of(self.topics)
        check_group(self.group)
        _whole("concurrency", self.concurrency, CONCURRENCY_MAX)
        _whole("waiting_max", self.waiting_max, 1_000_000)
        _whole("retry_ms_first", self.retry_ms_first, 24 * 3600 * 1000)
        _whole("retry_ms_max", self.retry_ms_max, 24 * 3600 * 1000)
        if self.ordered_by not in ("partition", "key", None):
            raise InvalidConfig(f"ordered_by is 'partition', 'key' or None, not {self.ordered_by!r}")
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise InvalidConfig(f"timeout_s is a number above 0, or None, not {self.timeout_s!r}")
        if self.consumer.get("commit", "acked") not in ("acked", "before"):
            raise InvalidConfig(
                "a handler commits what has succeeded (commit='acked'), or before it is called (commit='before')"
            )


OWN_NAMES = tuple(field.name for field in fields(HandlerSettings) if field.name not in ("topics", "group", "consumer"))
NAMES = (*OWN_NAMES, "start", *(field.name for field in fields(GroupSettings)))
"""What `client.handler` takes: its own settings first, then those of its consumer."""


def handler_settings(topics: Topics, group: str, given: Mapping[str, Any]) -> HandlerSettings:
    """What is no setting of a handler is one of its consumer.

    Raises InvalidConfig, InvalidGroupName.
    """
    known = {field.name for field in fields(HandlerSettings)}
    own = {name: value for name, value in given.items() if name in known}
    others = {name: value for name, value in given.items() if name not in known}
    check_rule(others.get("start", "earliest"), _ANY_TIME)
    for name in others:
        if name not in NAMES:
            near = nearest(name, NAMES)
            text = f"a handler has no setting {name!r}{f' (did you mean {near!r}?)' if near else ''}; it takes {', '.join(OWN_NAMES)}"
            raise InvalidConfig(f"{text}, and of its consumer {', '.join(NAMES[len(OWN_NAMES) :])}")
    settings_from(GroupSettings, {name: value for name, value in others.items() if name != "start"})
    return HandlerSettings(topics=topics, group=group, consumer=others, **own)


@dataclass(slots=True, eq=False)
class Handler:
    """What `client.handler` returns in place of the function. Calling it calls the function."""

    function: HandlerFunction
    settings: HandlerSettings
    handled: int = 0
    """Messages that succeeded."""
    failures: int = 0
    """Attempts that failed."""
    last_error: Exception | None = None
    """What the last failed attempt raised, or why messages do not come at present."""

    def __call__(self, message: GroupMessage) -> Awaitable[object] | object:
        return self.function(message)

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004  of an object
        )


def _whole(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidConfig(f"{name} is a whole number from 1 to {most}, not {value!r}")
