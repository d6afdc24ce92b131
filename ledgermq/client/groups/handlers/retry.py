"""Policies for messages whose handler fails: the values of `retry=` of `client.handler`.

Pure: a policy says how long to wait and when the last attempt was made. The runner acts on it.
Attempts are counted from 1, the first call included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random  # noqa: TID251  the type only; the generator is injected
from typing import Any, Literal, Self, cast

from ledgermq.buffers import MIB
from ledgermq.client.groups.handlers.lanes import Ordering
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.settings.declared import above_zero, check_between, check_fields, switch, whole
from ledgermq.client.settings.values import GroupSettings
from ledgermq.durations import find_duration_ms
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.backoff import backoff_s, jittered_s

WAIT_MS_MAX = 24 * 3600 * 1000
ATTEMPTS_MAX = 1_000_000
RECOVER_S_MAX = 7 * 24 * 3600.0
DELAY_S_MAX = 30 * 24 * 3600.0
MESSAGES_MAX = 1_000_000
BYTES_MAX = 1024 * 1024 * MIB

EndFunction = Callable[[GroupMessage, Exception], Awaitable[object] | object]
Then = Literal["stop", "drop"] | EndFunction
"""What happens after the last attempt; a function is called as (message, error)."""

Expired = Literal["skip", "dead_letter"]

LEVELS = "10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""Delays of RocketMQ's levels."""


class Retry(ABC):
    """What happens to a message that fails. Make one with `Retry.in_order`, `Retry.metaq` or
    `Retry.levels`, and give it as `retry=` to `client.handler`, or to `client.consumer` with a group.
    """

    __slots__ = ()

    @staticmethod
    def in_order(
        max_attempts: int | None = None,
        *,
        then: Then | None = None,
        wait_ms_first: int = 200,
        wait_ms_max: int = 30_000,
    ) -> InOrder:
        """Call the handler again in place: messages that are ordered behind the failed one wait,
        all others go on. For work whose order matters; this is the default of handlers.

            retry=ledgermq.Retry.in_order()                                 # until it succeeds
            retry=ledgermq.Retry.in_order(max_attempts=5, then="drop")

        `wait_ms_first`, `wait_ms_max`: milliseconds between two calls; the wait doubles with each
        failure from the first to the largest, and each is shortened at random to between a half and
        the whole. `max_attempts`: number of calls, the first included; None: no limit. It needs
        `then`, which says what happens after the last one: "stop", `run_handlers` raises the
        handler's error and the message stays unacknowledged; "drop", the message is logged and
        acknowledged; a function of (message, error), which may be asynchronous, the message is
        acknowledged when it returns. If it raises, the handler is called again after a wait, and
        then the function again.

        Raises InvalidConfig.
        """
        return InOrder(max_attempts=max_attempts, then=then, wait_ms_first=wait_ms_first, wait_ms_max=wait_ms_max)

    @staticmethod
    def metaq(
        attempts: int = 5,
        *,
        store: str | Path,
        wait_ms_step: int = 500,
        wait_ms_max: int = 5_000,
        recover_every_s: float = 300.0,
        recoveries_max: int | None = None,
        then: Literal["drop"] | EndFunction | None = None,
        messages_max: int = 100_000,
        bytes_max: int = 1024 * MIB,
        reorders: bool = False,
    ) -> MetaQ:
        """Call the handler `attempts` times in place, then keep the message in a file of this
        process, acknowledge it, and call the handler again later, as MetaQ (Metamorphosis) does.
        For work whose order does not matter, and where a failure may last for hours.

            @client.handler("orders", group="mailer", ordered_by=None, retry=ledgermq.Retry.metaq(store="mailer.retry"))

        `attempts`: calls in place, the first included; between them 1, 2, 3, … times `wait_ms_step`
        milliseconds pass, and at most `wait_ms_max`. `store`: path of an SQLite file on a local
        disk, for this handler alone; its folder must exist. The message is stored durably before it
        is acknowledged. A message that cannot be stored is not acknowledged, and is retried in
        place. `recover_every_s`: seconds between two rounds in which the handler is called once
        with each stored message, until it succeeds; the first round is at the start.
        `recoveries_max`: number of such calls for each message; None: no limit. It needs `then`,
        which says what happens after the last one: "drop", the message is logged and removed; a
        function of (message, error), the message is removed when it returns, and kept if it raises.
        `messages_max`, `bytes_max`: bounds of the store; when it is full, messages are retried in
        place. `reorders`: accept that stored messages are handled after later ones of their
        partition and key; needed unless the handler has ordered_by=None.

        The handler is called at least once: a crash may repeat a message. Raises InvalidConfig.
        """
        given: object = store
        if not isinstance(given, str | Path) or not str(given):
            raise InvalidConfig(f"store must be the path of a file, not {store!r}")
        return MetaQ(
            store=Path(store).expanduser(),
            attempts=attempts,
            wait_ms_step=wait_ms_step,
            wait_ms_max=wait_ms_max,
            recover_every_s=recover_every_s,
            recoveries_max=recoveries_max,
            then=then,
            messages_max=messages_max,
            bytes_max=bytes_max,
            reorders=reorders,
        )

    @staticmethod
    def levels(
        max_attempts: int = 16,
        delays: Delays = LEVELS,
        *,
        reorders: bool = False,
        expired: Expired = "skip",
    ) -> Levels:
        """Move a failed message to the retry topic of its group, from which it comes back after a delay,
        and after its last attempt to the dead-letter topic, as RocketMQ does. Messages behind it go on.

            @client.handler("orders", group="mailer", ordered_by=None, retry=ledgermq.Retry.levels(max_attempts=5))

        `max_attempts`: number of calls, the first included. `delays`: the wait after each failed
        attempt; the last is used for all later ones. A text ("10s 1m 10m"), a list of seconds or
        timedeltas, or `Retry.backoff(…)`. `reorders`: accept that a failed message is handled after
        later ones of its partition and key; a handler needs it unless it has ordered_by=None. `expired`:
        "dead_letter" also moves messages there whose time to live is over, instead of skipping them.

        The topics are `<group>.retry` and `<group>.dlq`. Raises InvalidConfig.
        """
        return Levels(max_attempts=max_attempts, delays=_delays_of(delays), reorders=reorders, expired=expired)

    @staticmethod
    def backoff(
        first: str | float | timedelta = "10s", factor: float = 2.0, longest: str | float | timedelta = "2h"
    ) -> Exponential:
        """Return growing delays for `Retry.levels`: `first`, then `factor` times as long with each
        failure, at most `longest`. Each is shortened at random to between a half and the whole.
        Raises InvalidConfig.
        """
        return Exponential(_seconds("first", first), factor, _seconds("longest", longest))

    @abstractmethod
    def wait_s(self, attempt: int, random: Random) -> float:
        """Return the seconds from failed attempt number `attempt` to the next one."""

    @abstractmethod
    def is_last(self, attempt: int) -> bool:
        """Return whether no further attempt in place follows this one."""

    @abstractmethod
    def check_handler(self, *, ordered_by: Ordering, transactional: bool) -> None:
        """Raise InvalidConfig if such a handler would break a promise of its other settings."""

    def with_callbacks(self, wrap: Callable[[Callable[..., object]], Callable[..., object]]) -> Self:
        """Return the same policy, with its function wrapped."""
        then = getattr(self, "then", None)
        return replace(cast(Any, self), then=wrap(then)) if callable(then) else self


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder(Retry):
    """See `Retry.in_order`."""

    max_attempts: int | None = whole(None, ATTEMPTS_MAX)
    then: Then | None = None
    wait_ms_first: int = whole(200, WAIT_MS_MAX)
    wait_ms_max: int = whole(30_000, WAIT_MS_MAX)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.wait_ms_first > self.wait_ms_max:
            raise InvalidConfig(f"wait_ms_first ({self.wait_ms_first}) is more than wait_ms_max ({self.wait_ms_max})")
        _check_then(self.then, ("stop", "drop"), "max_attempts", self.max_attempts)

    def wait_s(self, attempt: int, random: Random) -> float:
        return backoff_s(attempt - 1, self.wait_ms_first / 1000, self.wait_ms_max / 1000, random)

    def is_last(self, attempt: int) -> bool:
        return self.max_attempts is not None and attempt >= self.max_attempts

    def check_handler(self, *, ordered_by: Ordering, transactional: bool) -> None:
        if transactional and self.max_attempts is not None:
            raise InvalidConfig(
                "a transactional handler has no max_attempts: leave it out, and end a message in on_failure, which"
                " gets the number of the attempt; what it returns is sent in the same transaction"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaQ(Retry):
    """See `Retry.metaq`."""

    store: Path
    attempts: int = whole(5, ATTEMPTS_MAX)
    wait_ms_step: int = whole(500, WAIT_MS_MAX)
    wait_ms_max: int = whole(5_000, WAIT_MS_MAX)
    recover_every_s: float = above_zero(300.0, RECOVER_S_MAX)
    recoveries_max: int | None = whole(None, ATTEMPTS_MAX)
    then: Literal["drop"] | EndFunction | None = None
    messages_max: int = whole(100_000, MESSAGES_MAX)
    bytes_max: int = whole(1024 * MIB, BYTES_MAX)
    reorders: bool = switch(False)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_then(self.then, ("drop",), "recoveries_max", self.recoveries_max)

    def wait_s(self, attempt: int, random: Random) -> float:
        return min(attempt * self.wait_ms_step, self.wait_ms_max) / 1000

    def is_last(self, attempt: int) -> bool:
        return attempt >= self.attempts

    def check_handler(self, *, ordered_by: Ordering, transactional: bool) -> None:
        if transactional:
            raise InvalidConfig(
                "a transactional handler cannot use Retry.metaq: a message in a local file is outside of its"
                " transaction; leave out retry, or transactional"
            )
        if ordered_by is not None and not self.reorders:
            raise InvalidConfig(
                f"Retry.metaq handles a message that keeps failing after later ones of its {ordered_by}: set"
                " ordered_by=None, accept that with Retry.metaq(…, reorders=True), or use Retry.in_order"
            )


@dataclass(frozen=True, slots=True)
class Exponential:
    """See `Retry.backoff`. In seconds."""

    first_s: float
    factor: float
    max_s: float

    def __post_init__(self) -> None:
        check_between("factor", self.factor, 1, 1000)
        if self.first_s > self.max_s:
            raise InvalidConfig(f"first ({self.first_s:g} s) is more than longest ({self.max_s:g} s)")

    def wait_s(self, attempt: int, random: Random) -> float:
        wait_s = self.first_s
        for _ in range(attempt - 1):
            if wait_s >= self.max_s or self.factor == 1:
                break
            wait_s *= self.factor
        return jittered_s(min(wait_s, self.max_s), random)


Delays = str | Iterable[float | timedelta] | Exponential


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels(Retry):
    """See `Retry.levels`. `delays`: in seconds."""

    max_attempts: int = whole(16, ATTEMPTS_MAX)
    delays: tuple[float, ...] | Exponential
    reorders: bool = switch(False)
    expired: Expired = "skip"

    def __post_init__(self) -> None:
        check_fields(self)

    def wait_s(self, attempt: int, random: Random) -> float:
        if isinstance(self.delays, Exponential):
            return self.delays.wait_s(attempt, random)
        return self.delays[min(attempt, len(self.delays)) - 1]

    def is_last(self, attempt: int) -> bool:
        return attempt >= self.max_attempts

    def check_handler(self, *, ordered_by: Ordering, transactional: bool) -> None:
        if transactional:
            raise InvalidConfig(
                "a transactional handler cannot use Retry.levels: return the record for another topic in on_failure,"
                " which is sent in the same transaction"
            )
        if ordered_by is not None and not self.reorders:
            raise InvalidConfig(
                f"Retry.levels handles a failed message after later ones of its {ordered_by}: set ordered_by=None,"
                " accept that with Retry.levels(…, reorders=True), or use Retry.in_order"
            )


def _delays_of(given: object) -> tuple[float, ...] | Exponential:
    if isinstance(given, Exponential):
        return given
    each = given.split() if isinstance(given, str) else given
    if not isinstance(each, Iterable) or not (listed := list(each)):
        raise InvalidConfig(
            f"delays must be a text like '10s 1m 10m', a list of seconds or timedeltas, or Retry.backoff(…), not"
            f" {given!r}"
        )
    return tuple(_seconds("delays", delay) for delay in listed)


def _seconds(name: str, given: object) -> float:
    """Return a duration in seconds. Raises InvalidConfig."""
    if isinstance(given, timedelta):
        found = given.total_seconds()
    elif isinstance(given, str):
        span_ms = find_duration_ms(given)
        if span_ms is None:
            raise InvalidConfig(f"{name} has {given!r}: give a number and its unit, like 30s, 5m, 1.5h or 7d")
        found = span_ms / 1000
    elif isinstance(given, int | float) and not isinstance(given, bool):
        found = float(given)
    else:
        raise InvalidConfig(f"{name} takes durations like '30s', seconds and timedeltas, not {given!r}")
    if not 0 <= found <= DELAY_S_MAX:
        raise InvalidConfig(f"{name} must be from 0 seconds to {DELAY_S_MAX / 86400:g} days, not {given!r}")
    return found


def _check_then(then: object, words: tuple[str, ...], bound: str, most: int | None) -> None:
    if then is not None and not callable(then) and then not in words:
        raise InvalidConfig(f"then must be {' or '.join(map(repr, words))} or a function, not {then!r}")
    if (then is None) != (most is None):
        given, missing = ("then", bound) if most is None else (bound, "then")
        raise InvalidConfig(
            f"{given} needs {missing}: {bound} says when the last attempt is, then what happens after it"
        )


def check_consumer_retry(retry: object) -> Retry | None:
    """Return the policy of a consumer without a handler. Raises InvalidConfig."""
    if retry is not None and not isinstance(retry, Levels | InOrder):
        raise InvalidConfig(
            f"retry of a consumer must be Retry.levels(…) or Retry.in_order(), not {retry!r:.200}: Retry.metaq calls a"
            " function, so it needs client.handler"
        )
    if isinstance(retry, InOrder) and retry.max_attempts is not None:
        raise InvalidConfig(
            "a consumer has no max_attempts with Retry.in_order: acknowledge the message instead, or use client.handler"
        )
    return retry


def check_levels(retry: Levels, settings: GroupSettings) -> None:
    """Raises InvalidConfig if a consumer with these settings cannot move failed messages."""
    for name, is_set in (
        ("offset_store", settings.offset_store is not None),
        ("broadcast", settings.broadcast),
        ("commit='before'", settings.commit == "before"),
    ):
        if is_set:
            raise InvalidConfig(
                f"Retry.levels moves a message in the transaction that commits its offset: leave out {name}"
            )
    if retry.expired == "dead_letter" and settings.deliver_expired:
        raise InvalidConfig(
            "expired='dead_letter' moves the messages that deliver_expired=True returns: leave out one of them"
        )
