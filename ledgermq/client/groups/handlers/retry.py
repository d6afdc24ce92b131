"""Policies for messages whose handler fails: the values of `retry=` of `client.handler`.

Pure: a policy says how long to wait and when the last attempt was made. The runner acts on it.
Attempts are counted from 1, the first call included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random  # noqa: TID251  the type only; the generator is injected
from typing import Any, Literal, Self, cast

from ledgermq.buffers import MIB
from ledgermq.client.declared import above_zero, check_fields, switch, whole
from ledgermq.client.groups.handlers.lanes import Ordering
from ledgermq.client.groups.message import GroupMessage
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.backoff import backoff_s

WAIT_MS_MAX = 24 * 3600 * 1000
ATTEMPTS_MAX = 1_000_000
RECOVER_S_MAX = 7 * 24 * 3600.0
MESSAGES_MAX = 1_000_000
BYTES_MAX = 1024 * 1024 * MIB

EndFunction = Callable[[GroupMessage, Exception], Awaitable[object] | object]
Then = Literal["stop", "drop"] | EndFunction
"""What happens after the last attempt; a function is called as (message, error)."""


class Retry(ABC):
    """What happens to a message whose handler fails. Make one with `Retry.in_order` or
    `Retry.metaq`, and give it as `retry=` to `client.handler`.
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


def _check_then(then: object, words: tuple[str, ...], bound: str, most: int | None) -> None:
    if then is not None and not callable(then) and then not in words:
        raise InvalidConfig(f"then must be {' or '.join(map(repr, words))} or a function, not {then!r}")
    if (then is None) != (most is None):
        given, missing = ("then", bound) if most is None else (bound, "then")
        raise InvalidConfig(
            f"{given} needs {missing}: {bound} says when the last attempt is, then what happens after it"
        )
