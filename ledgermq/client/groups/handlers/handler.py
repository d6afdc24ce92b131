"""A handler as a program declares it, and its counts."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Generic, cast

from ledgermq.client.groups.assignment import Topics, check_group, check_rule, topics_of
from ledgermq.client.groups.handlers.lanes import Ordering
from ledgermq.client.groups.handlers.middleware import Middleware
from ledgermq.client.groups.handlers.retry import WAIT_MS_MAX, InOrder, MetaQ, Retry
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.settings.declared import (
    above_zero,
    between,
    check_fields,
    function,
    functions,
    having,
    switch,
    text,
    whole,
)
from ledgermq.client.settings.serializers import V
from ledgermq.client.settings.values import GroupSettings, settings_from
from ledgermq.errors import InvalidConfig
from ledgermq.hints import nearest
from ledgermq.protocol.naming.names import NAME_CHARS_MAX

HandlerFunction = Callable[[GroupMessage[V]], Awaitable[object] | object]
BatchFunction = Callable[[list[GroupMessage[V]]], Awaitable[object] | object]
"""The function of a handler with `batch=True`."""
OnFailure = Callable[[GroupMessage[V], Exception, int], Awaitable[object] | object]
"""Called as (message, error, attempt): the error that the handler raised, and the number of calls
so far, from 1 on. What it returns is sent if the handler is transactional.
"""

CONCURRENCY_MAX = 100_000
RETRY_MS_FIRST, RETRY_MS_MAX = 200, 30_000

_ANY_TIME = datetime.fromtimestamp(0, UTC)
"""Settings of a handler. `start` is only checked here; an age in it counts back from the time at
which the handler begins.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """`consumer`: settings of the member (see `GroupSettings`), and `start`."""

    topics: Topics
    group: str
    concurrency: int = whole(1, CONCURRENCY_MAX)
    """Messages that are handled at the same time. Raise it if the handler waits for other systems."""
    ordered_by: Ordering = "partition"
    """Which messages are handled one by one, the next only after success: those of a partition,
    those of a key, or none (None).
    """
    executor: Executor | None = having("submit")
    """Executor of functions that are not asynchronous; not set: the event loop's own threads."""
    timeout_s: float | None = above_zero(None)
    """Longest time of an asynchronous call; then it counts as failed. Not set: no bound."""
    retry: Retry | None = None
    """What happens to a message that fails: `Retry.in_order(…)`, `Retry.metaq(…)` or
    `Retry.levels(…)`. Not set: it is handled again in place, without end, after the waits of the next
    two settings.
    """
    retry_ms_first: int = whole(RETRY_MS_FIRST, WAIT_MS_MAX)
    """Wait before a failed message is handled again; it doubles with each failure, with jitter."""
    retry_ms_max: int = whole(RETRY_MS_MAX, WAIT_MS_MAX)
    """Longest such wait. Raise it if what fails takes long to recover."""
    waiting_max: int = whole(256, 1_000_000)
    """Messages of a partition that may wait for their turn; above it the partition is not read. A handler
    of batches holds at least two batches.
    """
    batch: bool = switch(False)
    """Call the function with a list of messages that follow each other in one partition. If the call fails,
    each of them is handled alone, in a list of one, and `retry` decides about each.
    """
    batch_records_max: int = whole(100, 100_000)
    """Messages of a batch, at most."""
    batch_wait_ms: float = between(100, 0, 60_000)
    """How long a batch that is not full waits for more messages."""
    rate_per_s: float | None = above_zero(None)
    """Calls that begin in a second in this process, at most, spread evenly; also those that repeat a failed
    one. Not set: no limit.
    """
    middleware: Sequence[Middleware] = functions("a message and the next call")
    """Asynchronous functions around each call, the first outermost: called as (message, call_next), they
    `await call_next(message)`, and return its result. What they raise counts as a failure of the call.
    """
    on_failure: OnFailure | None = function("message, error and attempt")
    """Called, and awaited if asynchronous, after each failed attempt. A message that it acknowledges
    is finished; for any other `retry` decides. Not set: a warning is logged. If the handler is
    transactional, and this returns anything but None, that is sent in place of the handler's
    result, and the message is finished.
    """
    transactional: bool = switch(False)
    """Send what the function returns (see `ledgermq.Outgoing`), and acknowledge the message, in one
    transaction: all of it takes effect once, or nothing.
    """
    transactional_id: str = text(NAME_CHARS_MAX)
    """Name that stays the same when this process is restarted, and that no other process uses. Not
    set: made of the group and `instance_id`; without that too, a new one at each start, and after a
    crash its messages wait for the time-out of its last transaction.
    """
    transaction_messages_max: int = whole(100, 10_000)
    """Messages that share a transaction, if they are there. 1: each has its own."""
    transaction_ms_max: int = whole(100, 60_000)
    """Time after which a transaction takes no further message. Lower it for earlier results, raise
    it for fewer requests.
    """
    transaction_timeout_s: float = above_zero(30.0, 900.0)
    """Time after which the cluster aborts a transaction that is still open."""
    consumer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        topics_of(self.topics)
        check_group(self.group)
        check_fields(self)
        if self.ordered_by not in ("partition", "key", None):
            raise InvalidConfig(f"ordered_by must be 'partition', 'key' or None, not {self.ordered_by!r}")
        if self.batch:
            self._check_batch()
        if self.transactional:
            self._check_transactional()
        elif self.transactional_id:
            raise InvalidConfig("transactional_id belongs to transactional=True")
        elif self.consumer.get("commit", "acked") not in ("acked", "before"):
            raise InvalidConfig(
                "commit of a handler must be 'acked' (after each success) or 'before' (before the call)"
            )
        if self.retry is not None:
            self._check_retry(self.retry)

    @property
    def held_max(self) -> int:
        """Return how many messages of a partition may wait."""
        return max(self.waiting_max, 2 * self.batch_records_max) if self.batch else self.waiting_max

    def _check_batch(self) -> None:
        if self.ordered_by == "key":
            raise InvalidConfig("a batch has messages of one partition, in their order: leave out ordered_by='key'")
        if self.transactional:
            raise InvalidConfig(
                "a transactional handler takes up to transaction_messages_max messages in one transaction already:"
                " leave out batch"
            )
        if isinstance(self.retry, MetaQ):
            raise InvalidConfig("Retry.metaq keeps single messages: use Retry.in_order or Retry.levels with batch")

    @property
    def policy(self) -> Retry:
        """Return `retry`, or its default."""
        first_ms = min(self.retry_ms_first, self.retry_ms_max)
        return self.retry or InOrder(wait_ms_first=first_ms, wait_ms_max=self.retry_ms_max)

    def _check_retry(self, retry: object) -> None:
        if not isinstance(retry, Retry):
            raise InvalidConfig(f"retry must be Retry.in_order(…), Retry.metaq(…) or Retry.levels(…), not {retry!r}")
        if (self.retry_ms_first, self.retry_ms_max) != (RETRY_MS_FIRST, RETRY_MS_MAX):
            raise InvalidConfig("retry has its own waits: leave out retry_ms_first and retry_ms_max")
        if self.consumer.get("commit") == "before":
            raise InvalidConfig("with commit='before' a message is handled once, at most: leave out retry")
        retry.check_handler(ordered_by=self.ordered_by, transactional=self.transactional)

    def _check_transactional(self) -> None:
        for name in ("commit", "offset_store", "broadcast"):
            if self.consumer.get(name):
                raise InvalidConfig(f"a transactional handler commits in its transactions: leave out {name}")


OWN_NAMES = tuple(field.name for field in fields(HandlerSettings) if field.name not in ("topics", "group", "consumer"))
NAMES = (*OWN_NAMES, "start", *(field.name for field in fields(GroupSettings)))
"""Names that `client.handler` accepts: its own settings first, then those of its consumer."""


def handler_settings(topics: Topics, group: str, given: Mapping[str, Any]) -> HandlerSettings:
    """Split the settings into those of the handler and those of its consumer.

    Raises InvalidConfig, InvalidGroupName.
    """
    known = {field.name for field in fields(HandlerSettings)}
    own = {name: value for name, value in given.items() if name in known}
    others = {name: value for name, value in given.items() if name not in known}
    check_rule(others.get("start", "earliest"), _ANY_TIME)
    for name in others:
        if name not in NAMES:
            near = nearest(name, NAMES)
            text = (
                f"a handler has no setting {name!r}{f' (did you mean {near!r}?)' if near else ''}; it takes"
                f" {', '.join(OWN_NAMES)}"
            )
            raise InvalidConfig(f"{text}, and of its consumer {', '.join(NAMES[len(OWN_NAMES) :])}")
    settings_from(GroupSettings, {name: value for name, value in others.items() if name != "start"})
    return HandlerSettings(topics=topics, group=group, consumer=others, **own)


@dataclass(slots=True, eq=False)
class Handler(Generic[V]):
    """A declared handler, which `client.handler` returns in place of the function. Calling it
    calls the function. To type checkers it is a `Handler[Order]` if its deserializer returns orders.
    """

    function: HandlerFunction[V] | BatchFunction[V]
    settings: HandlerSettings
    handled: int = 0
    """Number of messages that succeeded."""
    failures: int = 0
    """Number of attempts that failed."""
    exhausted: int = 0
    """Number of messages that were dropped, or passed to the function `then`, after their last attempt."""
    retried: int = 0
    """Number of failed messages that were moved to the retry topic of `Retry.levels`."""
    dead_lettered: int = 0
    """Number of messages that were moved to the dead-letter topic."""
    expired: int = 0
    """Number of messages that were skipped because they had expired."""
    stored: int = 0
    """Number of messages in the local store of `Retry.metaq` at present."""
    last_error: Exception | None = None
    """The error of the last failed attempt, or why no messages come at present."""
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_async = any(map(inspect.iscoroutinefunction, called_of(self.function)))

    def __call__(self, given: Any) -> Awaitable[object] | object:
        """Call the function with a message, or with a list of messages if it takes batches."""
        return cast(Callable[[Any], Awaitable[object] | object], self.function)(given)

    @property
    def yields_async(self) -> bool:
        """Return whether a call returns an asynchronous iterator."""
        return any(map(inspect.isasyncgenfunction, called_of(self.function)))


def called_of(function: object) -> tuple[object, object]:
    """Return what a call of a handler's function may call: itself, or the method of an object."""
    return function, getattr(function, "__call__", None)  # noqa: B004  of an object
