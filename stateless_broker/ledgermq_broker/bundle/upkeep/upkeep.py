"""Run the background work of a term: checkpoints, looks for checkpoints of other processes, Parquet
compaction.

None of it is needed for safety, so a failure never ends the term: it is logged, counted and retried
with back-off. An idle bundle costs no requests. Checkpoints follow writes, and looks follow writes
and reads. The fetch index shows whether a round of compaction is due (`compaction_due`), without a
request to the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from ledgermq.errors import LedgerMQError
from ledgermq.runtime.backoff import Backoff
from ledgermq.runtime.wait import wait_for
from ledgermq_broker.bundle.shared.context import BundleContext, BundleLimits
from ledgermq_broker.bundle.upkeep.compaction_due import next_compaction_ms, wants_retention, wants_snapshot
from ledgermq_broker.logs import get_logger
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.garbage.ledgers.checkpoints import remove_older
from ledgermq_ledger.log.recovery import advance_checkpoint
from ledgermq_ledger.log.writing.writer import LedgerWriter
from ledgermq_ledger.parquet.hand_over import is_under_way
from ledgermq_ledger.parquet.merging.merge import merge_bundle
from ledgermq_ledger.parquet.report import RoundReport
from ledgermq_ledger.root.copies import copies_of
from ledgermq_ledger.root.mend import mend_copies
from ledgermq_ledger.rounds.keyed_runner import clean_bundle
from ledgermq_ledger.rounds.runner import bring_facts_into_force, compact_bundle, round_of_bundle, try_to_tidy
from ledgermq_ledger.tables.follower import TableFollower
from ledgermq_ledger.view.view import LedgerView

RETRY_FIRST_S, RETRY_S_MAX = 1.0, 120.0
RELEASE_TAIL_SLOTS, RELEASE_CHECKPOINT_S = 16, 2.0
MEND_EVERY_S = 6 * 3600.0
"""Costs two GETs for each object of bundle 0. The interval is short enough to mend an object long
before its copy is likely to be damaged, too.
"""
COMPACTION_PAUSE_S_MAX = 600.0
"""Longest pause between two looks at a bundle for which the owner expects a round and the plan
finds nothing to do. No jitter: terms begin at different times, and `compaction_turn` lets one round
run at a time.
"""
TABLE_PAUSE_S, TABLE_PAUSE_S_MAX = 1.0, 4.0
"""Pause between two looks whether a topic's table lacks files, each a LIST for each bundle of the topic; the second
while nothing comes.
"""
TABLE_PAUSE_NONE_S = 60.0
"""Pause between two looks whether a topic of a bundle that is not written to has got a table. No jitter: terms begin at
different times.
"""
HAND_OVER_PAUSE_S, HAND_OVER_PAUSE_S_MAX = 5.0, 15.0
"""Pause between two rounds while the files of a partition that left or came are not yet with its new bundle; the
second while rounds find nothing to do, because the other bundle has not done its part.
"""

log = get_logger(__name__)


class Upkeep:
    def __init__(self, context: BundleContext, writer: LedgerWriter, view: LedgerView) -> None:
        self.bundle = writer.bundle
        self._context = context
        self._writer = writer
        self._view = view
        self._used = asyncio.Event()
        self._checkpoint_due = asyncio.Event()
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes_since = 0
        self._retention_s = asyncio.get_running_loop().time()
        self._compaction_pause_s = self._limits.compaction_interval_s
        self._written = asyncio.Event()
        self._tidy_again_s: float | None = None
        self._tidy_backoff = Backoff(context.sources, RETRY_FIRST_S, RETRY_S_MAX)
        self._consider_checkpoint()

    @property
    def _limits(self) -> BundleLimits:
        return self._context.limits

    def workers(self) -> list[Callable[[], Awaitable[None]]]:
        """Return the background loops; each runs until it is cancelled."""
        return [self._checkpoints, self._looks, self._compactions, self._copies, self._tables]

    def on_durable(self, index: fmt.SegmentIndex) -> None:
        self._used.set()
        self._written.set()
        size_bytes = sum(entry.length for entry in index.batches)
        self._sizes.append((index.slot, size_bytes))
        self._bytes_since += size_bytes
        self._consider_checkpoint()

    def on_read(self) -> None:
        self._used.set()

    def _consider_checkpoint(self) -> None:
        done = self._view.checkpoint.state.slot
        while self._sizes and self._sizes[0][0] <= done:
            self._bytes_since -= self._sizes.popleft()[1]
        if (
            self._writer.durable.slot - done >= self._limits.checkpoint_slots
            or self._bytes_since >= self._limits.checkpoint_bytes
        ):
            self._checkpoint_due.set()

    async def _checkpoints(self) -> None:
        while True:
            await self._checkpoint_due.wait()
            await self._insist("checkpoint", self._checkpoint)
            self._checkpoint_due.clear()
            self._consider_checkpoint()

    async def shorten_recovery(self) -> None:
        """Write a checkpoint before a hand-over, while the bundle is still served, if the next
        owner would otherwise have many segments to read.
        """
        if self._writer.durable.slot - self._view.checkpoint.state.slot <= RELEASE_TAIL_SLOTS:
            return
        try:
            async with asyncio.timeout(RELEASE_CHECKPOINT_S):
                await self._checkpoint()
        except (LedgerMQError, TimeoutError) as error:
            self._context.metrics.upkeep_failed(self.bundle, "checkpoint", error)

    async def _checkpoint(self) -> None:
        context = self._context
        await advance_checkpoint(context.ledger(self.bundle), durable=self._writer.durable)
        await self._view.look()  # the checkpoint that was put need not be the newest
        await remove_older(context.store, self._view.checkpoint)
        context.metrics.checkpointed(self.bundle, self._view.checkpoint.number)

    async def _copies(self) -> None:
        """Check bundle 0 from time to time: both copies of what is stored twice must exist and be
        sound.
        """
        store = copies_of(self._context.store)
        if self.bundle != keys.METADATA_BUNDLE or store is None:
            return
        while True:
            store.surprised.clear()
            await self._insist("copies", partial(mend_copies, store))
            await wait_for(store.surprised, MEND_EVERY_S)
            await asyncio.sleep(RETRY_FIRST_S)

    async def _looks(self) -> None:
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while True:
            await self._used.wait()
            await asyncio.sleep(looked_s + self._limits.look_interval_s - loop.time())
            self._used.clear()
            looked_s = loop.time()
            await self._insist("look", self._look)

    async def _look(self) -> None:
        if await self._view.look():
            self._context.metrics.parked(self.bundle, len(self._view.parked))

    async def _compactions(self) -> None:
        rounds = self._context.background_rounds
        while True:
            await rounds.allowed.wait()
            await asyncio.sleep(self._compaction_pause_s)
            if not rounds.allowed.is_set():
                continue
            if self._view.has_older_segments:
                await self._insist("look", self._view.load_all)
            if self._is_due():
                await self._insist("compaction", self._compact_in_turn)
            elif wants_snapshot(self._view, self._context.catalog()):
                await self._insist("snapshot", partial(rounds.run, self._snapshot))
            else:
                self._compaction_pause_s = self._limits.compaction_interval_s

    def _is_due(self) -> bool:
        catalog, now_s = self._context.catalog(), asyncio.get_running_loop().time()
        if self._tidy_again_s is not None and now_s >= self._tidy_again_s:
            return True
        due_ms = next_compaction_ms(self._view, catalog)
        if due_ms is not None and due_ms <= self._context.sources.now_ms():
            return True
        if self._hands_over():
            return True
        if now_s - self._retention_s < self._limits.retention_interval_s:
            return False
        return wants_retention(self._view.checkpoint, catalog, self._context.compaction.no_stale_versions)

    async def _snapshot(self) -> None:
        """Run a round of internal topics alone. It is short, so it does not wait for another
        bundle's round.
        """
        context = self._context
        await compact_bundle(context.compaction, self.bundle, context.catalog(), everything=False, only_internal=True)
        await self._look()
        self._compaction_pause_s = self._limits.compaction_interval_s

    async def _compact_in_turn(self) -> None:
        async with self._context.compaction_turn:
            await self._context.background_rounds.run(self._compact)

    async def _compact(self) -> None:
        context = self._context
        self._retention_s = asyncio.get_running_loop().time()
        report = await round_of_bundle(context.compaction, self.bundle, context.catalog(), everything=False)
        if report is not None:
            self._log_round(report)
        await self._tidy()
        await self._clean()
        if report is not None:
            await self._merge()
        await self._look()
        interval_s, hands_over = self._limits.compaction_interval_s, self._hands_over()
        if report is not None or self._tidy_again_s is not None:
            self._compaction_pause_s = min(HAND_OVER_PAUSE_S, interval_s) if hands_over else interval_s
        else:
            longest_s = max(interval_s, HAND_OVER_PAUSE_S_MAX) if hands_over else COMPACTION_PAUSE_S_MAX
            self._compaction_pause_s = min(longest_s, 2 * self._compaction_pause_s)

    def _hands_over(self) -> bool:
        """Return whether the files of a partition that left or came are not yet with its new bundle."""
        return is_under_way(self._writer.durable.moves, self._view.counters, self._context.catalog())

    def _log_round(self, report: RoundReport) -> None:
        self._context.metrics.compacted(report)
        log.info("compacted", bundle=self.bundle, plan=report.plan, files=report.files, records=report.records)
        for parked in report.parked:
            log.error(
                "parked", bundle=self.bundle, topic=parked.topic, partition=parked.partition, damaged=parked.object_key
            )

    async def _tidy(self) -> None:
        """Delete what is no longer needed.

        Failures are logged and retried after growing pauses, so that no round has to wait.
        """
        context, now_s = self._context, asyncio.get_running_loop().time()
        if self._tidy_again_s is not None and now_s < self._tidy_again_s:
            return
        error = await try_to_tidy(context.compaction, self.bundle, context.catalog())
        if error is None:
            self._tidy_again_s = None
            self._tidy_backoff.reset()
            return
        pause_s = self._tidy_backoff.next_s()
        self._log_failure("compaction", error, retry_s=round(pause_s, 1))
        self._tidy_again_s = now_s + pause_s

    async def _clean(self) -> None:
        """Clean the keyed topics that are small enough.

        Failures are logged and retried with the next round.
        """
        context = self._context
        bytes_max = self._limits.cleaning_bytes_max
        try:
            cleaned = await clean_bundle(
                context.compaction, self.bundle, context.catalog(), everything=False, bytes_max=bytes_max
            )
        except LedgerMQError as error:
            self._log_failure("cleaning", error)
            return
        for each in cleaned:
            log.info("cleaned", bundle=self.bundle, topic=each.topic, partition=each.partition, version=each.number)

    async def _merge(self) -> None:
        """Merge small files where the round may have completed a run.

        Failures are logged and retried with the next round.
        """
        context = self._context
        bytes_max = self._limits.cleaning_bytes_max
        try:
            merged = await merge_bundle(context.compaction, self.bundle, context.catalog(), bytes_max=bytes_max)
        except LedgerMQError as error:
            self._log_failure("merging", error)
            return
        for each in merged:
            context.metrics.merged(each)
            log.info("merged", bundle=self.bundle, topic=each.topic, partition=each.partition, files=each.files)

    async def _tables(self) -> None:
        """Keep the tables of the topics up to date whose partition 0 is here. Costs no request without one."""
        followers: dict[str, TableFollower] = {}
        states, pause_s = self._context.tables, TABLE_PAUSE_S
        try:
            while True:
                if not followers:
                    await wait_for(self._written, TABLE_PAUSE_NONE_S)
                await asyncio.sleep(pause_s)
                self._written.clear()
                self._choose_tables(followers)
                done = [await self._follow(follower) for follower in followers.values()]
                pause_s = TABLE_PAUSE_S if any(done) or not followers else min(TABLE_PAUSE_S_MAX, 2 * pause_s)
        finally:
            for name in followers:
                states.pop((self.bundle, name), None)

    def _choose_tables(self, followers: dict[str, TableFollower]) -> None:
        """Begin, replace and end followers as the catalog says now."""
        context, now_s = self._context, asyncio.get_running_loop().time
        wanted = {topic.name: topic for topic in context.topics_with_tables() if topic.bundles[0] == self.bundle}
        for name in followers.keys() - wanted.keys():
            del followers[name]
            context.tables.pop((self.bundle, name), None)
        for name, topic in wanted.items():
            before = followers.get(name)
            if before is None or before.topic is not topic:
                same = before is not None and before.topic.settings.table_generation == topic.settings.table_generation
                state = before.state if before is not None and same else None
                followers[name] = TableFollower(context.store, context.cluster, topic, context.sources, now_s, state)
                context.tables[self.bundle, name] = followers[name].state

    async def _follow(self, follower: TableFollower) -> int:
        """Failures are logged, and the next look tries again."""
        context = self._context
        try:
            if follower.state.why:  # a bundle without rounds may not know of the table yet
                for bundle in sorted(follower.topic.bundles_in_use):
                    await bring_facts_into_force(replace(context.ledger(bundle), known=None), context.catalog())
            versions = await follower.follow()
        except Exception as error:  # any error, bugs included: the log never waits for a table
            self._log_failure("table", error)
            versions = 0
        if follower.holds_too_much:
            await self._let_go_of(follower)
        if versions:
            log.info("registered", bundle=self.bundle, topic=follower.topic.name, versions=versions)
        return versions

    async def _let_go_of(self, follower: TableFollower) -> None:
        """Unset a table that holds back too much. The next look tries again after a failure."""
        try:
            await self._context.let_go_of_table(follower.topic, follower.state.held_bytes)
        except Exception as error:  # any error, as above
            self._log_failure("table", error)
            return
        log.warning(
            "table unset",
            bundle=self.bundle,
            topic=follower.topic.name,
            held_bytes=follower.state.held_bytes,
            bound=follower.topic.settings.table_hold_max_bytes,
        )

    async def _insist(self, work: str, step: Callable[[], Awaitable[object]]) -> None:
        """Repeat the work until it succeeds or the term ends."""
        backoff = Backoff(self._context.sources, RETRY_FIRST_S, RETRY_S_MAX)
        while True:
            try:
                await step()
                return
            except Exception as error:  # any error, bugs included: the term continues without this work for now
                pause_s = backoff.next_s()
                self._log_failure(work, error, retry_s=round(pause_s, 1))
            await asyncio.sleep(pause_s)

    def _log_failure(self, work: str, error: Exception, **more: float) -> None:
        self._context.metrics.upkeep_failed(self.bundle, work, error)
        log.warning("upkeep failed", bundle=self.bundle, work=work, error=repr(error), **more)
