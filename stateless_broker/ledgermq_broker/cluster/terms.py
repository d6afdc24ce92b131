"""Manage terms: the bundles that this broker owns now, and the tasks that open, hand over and drop
them.

Each bundle has at most one task at a time. A failure of a bundle becomes its trouble: callers of
the bundle get the error, and the work is retried after a pause (slowly for damaged data). Other
bundles are not affected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from ledgermq.errors import DataDamaged, FormatNotSupported, LedgerMQError, NotOwner
from ledgermq_broker.bundle.owner import BundleOwner
from ledgermq_broker.bundle.shared.context import BundleContext
from ledgermq_broker.cluster.placement.takeover import ClaimHistory
from ledgermq_broker.logs import get_logger

TROUBLE_FIRST_S = 0.5
TROUBLE_S_MAX = 5.0
"""No jitter: one broker tries a bundle again, and each claim waits at random besides (`takeover`)."""
CHECK_PAUSE_S = 1.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a bundle that should be served here is not."""

    error: LedgerMQError
    retry_at: float
    pause_s: float


class Terms:
    """`on_change` is called after each change of `opened` or `troubles`. `damaged_retry_s`: pause
    after damaged data.

    `announce` reports a release to the other brokers before it happens, so that callers sent to the
    successor wait there. `stood_still` returns whether this process stood still a moment ago, so
    that the loss of a term was uncontested.
    """

    def __init__(
        self,
        opened: dict[int, BundleOwner],
        context: BundleContext,
        claims: dict[int, ClaimHistory],
        damaged_retry_s: Callable[[], float],
        on_change: Callable[[], None],
        announce: Callable[[], Awaitable[None]],
        stood_still: Callable[[], bool] = lambda: False,
    ) -> None:
        self.opened = opened
        self.opened_at: dict[int, float] = {}
        self.troubles: dict[int, Trouble] = {}
        self.releasing: set[int] = set()
        """Bundles that are about to be handed over, or were handed over and not claimed here since:
        a claim is uncontested.
        """
        self.context = context
        self._claims = claims
        self._damaged_retry_s = damaged_retry_s
        self._on_change = on_change
        self._announce = announce
        self._stood_still = stood_still
        self._busy: dict[int, asyncio.Task[None]] = {}
        self._watches: dict[int, asyncio.Task[None]] = {}
        self._checks: dict[int, asyncio.Task[None]] = {}

    def is_busy(self, bundle: int) -> bool:
        return bundle in self._busy

    def open(self, bundle: int, wait_s: float, is_still_due: Callable[[], bool]) -> None:
        """Claim the bundle after `wait_s`, if it is still due then."""
        self._start(bundle, self._open(bundle, wait_s, is_still_due))

    def release(self, bundle: int, successor: str) -> None:
        """Hand the bundle over to the broker at address `successor`.

        If the store refuses that, the bundle is still served here.
        """
        self._begin_release(bundle, successor, is_end=False)

    def drop(self, bundle: int, why: str) -> None:
        """Forget a term that another broker's term has ended."""
        self._start(bundle, self._drop(bundle, why))

    def forgive(self, bundle: int) -> None:
        """Forget the trouble of a bundle that another broker is to serve, because it no longer
        matters.
        """
        self.troubles.pop(bundle, None)

    async def release_all(self, successor: Callable[[int], str]) -> None:
        """Finish or cancel what is under way, then hand over everything."""
        await self._cancel(list(self._busy.values()))
        for bundle in list(self.opened):
            if bundle not in self._busy:  # otherwise its term ended by itself meanwhile, and is being dropped
                self._begin_release(bundle, successor(bundle), is_end=True)
        if self._busy:
            await asyncio.wait(list(self._busy.values()))

    def suspect(self) -> None:
        """Look into the ledger of every bundle, once, soon, because something has happened that may
        hide a claim.
        """
        for bundle, owner in self.opened.items():
            if bundle not in self._checks:
                self._checks[bundle] = asyncio.create_task(
                    self._check(bundle, owner), name=f"fence check of bundle {bundle}"
                )

    async def close(self) -> None:
        """Drop everything at once, without announcing it."""
        await self._cancel([*self._busy.values(), *self._watches.values(), *self._checks.values()])
        for bundle in list(self.opened):
            await self.opened.pop(bundle).close()

    async def _cancel(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _start(self, bundle: int, work: Coroutine[None, None, None]) -> None:
        assert bundle not in self._busy, f"bundle {bundle} is being opened or released already"
        task = asyncio.create_task(self._guarded(bundle, work), name=f"ownership of bundle {bundle}")
        self._busy[bundle] = task
        task.add_done_callback(lambda _: self._over(bundle, task, work))

    def _over(self, bundle: int, task: asyncio.Task[None] | None, work: Coroutine[None, None, None]) -> None:
        """Note the end of a task. This also runs for a task that was cancelled before it began,
        where no `finally` is reached.
        """
        work.close()
        if self._busy.get(bundle) is task:
            del self._busy[bundle]
            self._on_change()

    async def _guarded(self, bundle: int, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except LedgerMQError as error:
            self._note(bundle, error)
        except Exception as error:  # a bug: this bundle stops and is reported, the others continue
            log.exception("bundle stopped", bundle=bundle)
            self._note(bundle, LedgerMQError(f"bundle {bundle}: {error!r}"))
        finally:
            self._over(bundle, asyncio.current_task(), work)

    async def _open(self, bundle: int, wait_s: float, is_still_due: Callable[[], bool]) -> None:
        await asyncio.sleep(wait_s)
        if not is_still_due():
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            owner = await BundleOwner.open(bundle, self.context)
        except LedgerMQError as error:
            self.context.metrics.claim_failed(bundle, error)
            self._claims[bundle].note_attempt(loop.time())
            raise
        self.context.metrics.claimed(bundle, owner.epoch, loop.time() - begun)
        self.troubles.pop(bundle, None)
        self.releasing.discard(bundle)
        self.opened[bundle], self.opened_at[bundle] = owner, loop.time()
        self._claims[bundle].note(owner.epoch, loop.time())
        self._watches[bundle] = asyncio.create_task(self._watch(bundle, owner), name=f"watch bundle {bundle}")
        log.info("bundle opened", bundle=bundle, epoch=owner.epoch)

    async def _watch(self, bundle: int, owner: BundleOwner) -> None:
        """Drop a term that ends by itself, fenced or by a store error."""
        await owner.ended.wait()
        if self.opened.get(bundle) is owner and bundle not in self._busy:
            self.drop(bundle, str(owner.lost))

    async def _check(self, bundle: int, owner: BundleOwner) -> None:
        """Check the fence until the store has answered; a foreign claim ends the term, and `_watch`
        does the rest.
        """
        try:
            while owner.lost is None:
                try:
                    await owner.check_fence()
                    return
                except NotOwner:
                    return
                except LedgerMQError as error:
                    log.info("fence not checked yet", bundle=bundle, error=str(error))
                await asyncio.sleep(CHECK_PAUSE_S)
        finally:
            del self._checks[bundle]

    def _begin_release(self, bundle: int, successor: str, *, is_end: bool) -> None:
        self.releasing.add(bundle)
        self._start(bundle, self._release(bundle, successor, is_end=is_end))

    async def _release(self, bundle: int, successor: str, *, is_end: bool) -> None:
        """Release the bundle. `is_end`: this process stops, so the term is over even if the store
        refuses the release.
        """
        owner = self.opened[bundle]
        is_served_on = False
        try:
            await self._announce()
            await owner.release(successor)
            self.context.metrics.term_ended(bundle, "released")
            log.info("bundle handed over", bundle=bundle, successor=successor)
        except NotOwner as error:
            self.releasing.discard(bundle)
            self.context.metrics.term_ended(bundle, "fenced")
            log.info("bundle was taken before it was handed over", bundle=bundle, error=str(error))
        except LedgerMQError as error:
            is_served_on = owner.lost is None and not is_end
            if not is_served_on:
                raise
            self.releasing.discard(bundle)
            log.warning("bundle not handed over, it is served on", bundle=bundle, error=str(error))
        finally:
            if not is_served_on:
                await self._forget(bundle)

    async def _drop(self, bundle: int, why: str) -> None:
        owner = self.opened[bundle]
        log.warning("bundle lost", bundle=bundle, epoch=owner.epoch, why=why)
        if owner.lost is None or isinstance(owner.lost, NotOwner):
            self.context.metrics.term_ended(bundle, "fenced")
            self._claims[bundle].note_lost(asyncio.get_running_loop().time(), stood_still=self._stood_still())
        else:
            self.context.metrics.term_ended(bundle, "failed")
            self._note(bundle, owner.lost)
        await self._forget(bundle)

    async def _forget(self, bundle: int) -> None:
        owner = self.opened.pop(bundle)
        watch = self._watches.pop(bundle)
        watch.cancel()
        await owner.close()

    def _note(self, bundle: int, error: LedgerMQError) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(error, NotOwner):  # another broker was faster: no trouble; the claims set the wait
            self.troubles.pop(bundle, None)
            return
        before = self.troubles.get(bundle)
        pause_s = min(TROUBLE_S_MAX, 2 * before.pause_s if before else TROUBLE_FIRST_S)
        if type(error) is LedgerMQError or isinstance(error, (DataDamaged, FormatNotSupported)):
            pause_s = self._damaged_retry_s()
        self.troubles[bundle] = Trouble(error, now + pause_s, pause_s)
        log.error("bundle cannot be served", bundle=bundle, error=str(error), code=error.code, retry_s=pause_s)
