"""Connect commands to the cluster through the public SDK, within the user's time limit.

A command that waits logs the reason on stderr after a failed attempt and at least one second. At
the limit it ends with Unavailable, whatever it is doing. The limit counts from the beginning of the
command. For `consume` and `produce`, which run as long as the user likes, it counts from the last
answer, and only while one is awaited.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from rich.console import Console

import ledgermq
from ledgermq.cli.arguments.tls_options import given_tls
from ledgermq.cli.output.terminal import notes
from ledgermq.errors import InvalidConfig, LedgerMQError, Unavailable
from ledgermq.runtime.tasks import end

TOLD_AFTER_S = 0.7
SILENCE_TOLD_AFTER_S = 2.0
"""Time before a waiting command reports the wait, if no attempt has failed. Starting an embedded
broker takes this long, and so does the first connection on a busy machine.
"""
LOOK_S = 0.1
ATTEMPT_S_MAX = 10.0

_token_file = ""

Progress = Callable[[], object]
"""Return a value that changes with each answer that the command awaits; None while it awaits none."""


def use_token_file(path: str) -> None:
    """Let all commands of this process prove themselves by the token in this file; "" for none."""
    global _token_file  # noqa: PLW0603 - an option of the program, not of a command
    _token_file = path


def chosen_token_file() -> str:
    """Return the file that `use_token_file` was given last."""
    return _token_file


class Session:
    """A connection and its time limit.

    `client` is set once `connected_session` has yielded.
    """

    client: ledgermq.Client

    def __init__(self, place: str, timeout_s: float, limit: asyncio.Timeout) -> None:
        self.console: Console = notes()
        self.progress: Progress = lambda: 0
        self.trouble: LedgerMQError | None = None
        """Why the last attempt failed; None: it succeeded, or there was none."""
        self._place = place
        self._timeout_s = timeout_s
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._told: set[str] = set()

    @property
    def expired(self) -> bool:
        return self._limit.expired()

    def note_trouble(self, trouble: LedgerMQError | None) -> None:
        self.trouble = trouble

    def while_in_trouble(self) -> object:
        """Progress of a command that waits for messages. A wait without messages is normal, so it
        is not reported.
        """
        return None if self.trouble is None else 0

    @contextmanager
    def user_is_asked(self) -> Iterator[None]:
        """Stop the clock while the user answers a question."""
        begun_s = self._loop.time()
        yield
        self._since_s += self._loop.time() - begun_s
        self._limit.reschedule(self._since_s + self._timeout_s)

    async def watch(self) -> None:
        """Report waits, and renew the limit with each progress, until cancelled."""
        before = self.progress()
        while True:
            await asyncio.sleep(LOOK_S)
            now, progress = self._loop.time(), self.progress()
            if progress is None or progress != before:
                self._since_s = now
                self._told.clear()
            before = progress
            if self._limit.expired():
                return
            self._limit.reschedule(None if progress is None else self._since_s + self._timeout_s)
            if now - self._since_s >= (SILENCE_TOLD_AFTER_S if self.trouble is None else TOLD_AFTER_S):
                self._tell(now)

    def _tell(self, now: float) -> None:
        reason = self._reason()
        if reason not in self._told:
            self._told.add(reason)
            left_s = max(0.0, self._since_s + self._timeout_s - now)
            self.console.print(
                f"waiting for {self._place}: {reason}; timeout in {left_s:.0f} s", markup=False, soft_wrap=True
            )

    def _reason(self) -> str:
        if self.trouble is None:
            return "no answer so far"
        text = " ".join(self.trouble.message.split())
        return text.removeprefix(self._place.removeprefix(BROKER_AT)).removeprefix(":").strip()

    def too_late(self) -> Unavailable:
        return Unavailable(f"{self._place} did not answer within {self._timeout_s:g} s: {self._reason()}")


BROKER_AT = "a broker at "


@asynccontextmanager
async def connected_session(target: str, timeout_s: float, *, may_make: bool = False) -> AsyncIterator[Session]:
    """Connect to a cluster. `may_make`: create a cluster if the root URL or folder holds none.
    Commands that only read or change an existing cluster refuse such a root.

    Raises InvalidConfig for an invalid target, Unavailable.
    """
    chosen = parse_target(target)
    place = f"the cluster at {chosen}" if "://" in chosen else f"{BROKER_AT}{chosen}"
    limit = asyncio.timeout(timeout_s)
    session: Session | None = None
    try:
        async with limit:
            session = Session(place, timeout_s, limit)
            watching = asyncio.create_task(session.watch())
            try:
                connecting = ledgermq.connect(
                    chosen,
                    timeout_s=timeout_s,
                    attempt_timeout_s=min(ATTEMPT_S_MAX, timeout_s),
                    must_exist=not may_make,
                    tls=given_tls(),
                    on_trouble=session.note_trouble,
                    token_file=_token_file,
                )
                async with connecting as session.client:
                    yield session
            finally:
                await end(watching)
    except TimeoutError as error:
        if session is None or not limit.expired():
            raise
        raise session.too_late() from error


@asynccontextmanager
async def connected(target: str, timeout_s: float, *, may_make: bool = False) -> AsyncIterator[ledgermq.Client]:
    """Yield the client of a `connected_session`, for a command that ends by itself."""
    async with connected_session(target, timeout_s, may_make=may_make) as session:
        yield session.client


def parse_target(target: str) -> str:
    """Return addresses and root URLs as they are, and a folder as its root URL. Raises
    InvalidConfig.

    A folder that does not exist yet must begin with /, ./ or ../, so that a mistyped address does
    not create a folder.
    """
    if not target.strip():
        raise InvalidConfig("the target is empty: give host:port, a root URL like file:///data/cluster, or a folder")
    if "://" in target:
        return target
    if target.startswith(("/", "./", "../")) or Path(target).is_dir():
        return Path(target).absolute().as_uri()
    if os.sep in target or ":" not in target:
        raise InvalidConfig(
            f"{target!r} is neither a broker address (host:port) nor a folder; write ./{target} to create that folder"
        )
    return target
