"""The end of a soak: programs end, the stream reads to the end, all stop, and what is left is judged."""

from __future__ import annotations

import asyncio
import json
import signal

import numpy as np

import ledgermq
from ledgermq.sources import Sources
from ledgermq_broker.timed.stored.view import read_timers
from ledgermq_ledger.cluster import read_cluster
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.root.open import open_store
from tests.chaos.children import Child
from tests.chaos.judge import compact_all, fsck
from tests.judges.violation import Violation
from tests.soak.cluster import GRACE_S, LOG_START_MS
from tests.soak.timed import AFTER_S, Came, Sent, judge_parquet, judge_waiting
from tests.soak.timed import judge as judge_timed
from tests.soak.verdict import Witnesses, judge
from tests.soak.world import PRODUCED, TOPICS, SoakWorld, sizes_of

DRAIN_S_MAX = 300.0
STOP_S_MAX = 90.0
LOG_START_S = 5 * LOG_START_MS / 1000
"""Until the log starts of hidden topics have moved behind what was delivered."""


class SoakEnd(SoakWorld):
    async def _end_producers(self) -> None:
        (self.folder / "pause").unlink(missing_ok=True)
        for producer in self.producers:
            producer.signal(signal.SIGTERM)
        for producer in self.producers:
            if await producer.ended(DRAIN_S_MAX) != 0:
                self.violations.append(Violation("producer", f"{producer.log.name}: {producer.text()[-1000:]}"))
        self.note("the producers have ended")

    async def _end_timed(self) -> None:
        """Until every timed message has come that is due by now, and what waited in hidden topics is freed."""
        self.timed_sender.signal(signal.SIGTERM)
        await self._ended_well(self.timed_sender, "timed sender")
        sent = Sent.load(self.folder)
        _, most = sent.waiting()
        limit_s = DRAIN_S_MAX + AFTER_S
        try:
            async with (
                asyncio.timeout(limit_s),
                ledgermq.connect(self.cluster.target, timeout_s=60) as client,
            ):
                while (waiting := await count_waiting(client)) > most:
                    self.note(f"{waiting:,} timed messages wait")
                    await asyncio.sleep(2.0)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"timed messages wait after {limit_s:.0f} s"))
        else:
            self.violations += judge_waiting(sent, waiting)
            self.facts["timed_waiting"] = waiting
        self.timed_reader.signal(signal.SIGTERM)
        await self._ended_well(self.timed_reader, "timed reader")
        try:
            await until_freed(self.store.direct_url, limit_s)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"delivered timed messages are not freed after {limit_s:.0f} s"))
        await asyncio.sleep(LOG_START_S)
        self.note("all timed messages have come")

    async def _ended_well(self, child: Child, name: str) -> None:
        """Count it as a violation if the process does not end, or fails. It ended by itself: the same."""
        try:
            code = await child.ended(DRAIN_S_MAX)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"the {name} did not end within {DRAIN_S_MAX:.0f} s"))
            return
        if code != 0:
            self.violations.append(Violation(name, f"{child.log.name}: exit code {code}: {child.text()[-1000:]}"))

    async def _drain(self) -> None:
        """Until the stream has read all that there is."""
        async with ledgermq.connect(self.cluster.target) as client:
            self.ends = {
                (topic, number): end
                for topic in TOPICS
                for number, end in (await client.list_offsets(topic, "latest")).items()
            }
        (self.folder / "ends.json").write_text(json.dumps([[*partition, end] for partition, end in self.ends.items()]))
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                while any(
                    Witnesses.stream_end(self.stream_file, partition) < end for partition, end in self.ends.items()
                ):
                    await asyncio.sleep(2.0)
        except TimeoutError:
            self.violations.append(Violation("stuck", f"the stream is not at the end after {DRAIN_S_MAX:.0f} s"))
        self._ending = True
        self.note("the stream has read everything")

    async def _stop_all(self) -> None:
        for child in self.slow_readers:
            await child.kill()
        (self.folder / f"{self.stream_file.name}.stop").touch()
        self.plain.signal(signal.SIGTERM)
        for child in self.compactors.values():
            child.signal(signal.SIGTERM)
        for child in (self.stream, self.plain, *self.compactors.values()):
            try:
                code = await child.ended(STOP_S_MAX)
            except TimeoutError:
                self.violations.append(Violation("stuck", f"{child.log.name}: did not end within {STOP_S_MAX:.0f} s"))
                continue
            if code != 0:
                self.violations.append(
                    Violation("graceful stop", f"{child.log.name}: exit code {code}: {child.text()[-500:]}")
                )
        await asyncio.gather(*(self.cluster.stop(broker) for broker in self.cluster.brokers))
        self.note("everything has stopped")

    async def _clean_up(self) -> None:
        """What is left goes to Parquet; what is not needed goes, once the grace has passed."""
        self.violations += await compact_all(self.children, self.store.direct_url)
        self.facts["bucket_bytes_before_grace"] = sum(sizes_of(self.root).values())
        await asyncio.sleep(GRACE_S)
        for _ in range(2):
            self.violations += await compact_all(self.children, self.store.direct_url)
        found, verdict = await fsck(self.children, self.store.direct_url)
        self.violations += found
        if not verdict.startswith("clean"):
            self.violations.append(Violation("fsck", f"not clean at the end: {verdict}"))
        self.facts["program_kills"] = self.programs.kills
        self.facts["fsck"] = verdict
        sizes = sizes_of(self.root)
        self.facts["bucket_bytes_at_the_end"] = sizes
        self._judge_timed()
        witnesses = Witnesses.read(self.folder, list(PRODUCED))
        self.violations += await judge(
            witnesses, self.store.direct_url, self.root / "parquet", self.ends, sizes, self.facts
        )

    def _judge_timed(self) -> None:
        sent, came = Sent.load(self.folder), Came.load(self.folder)
        self.violations += judge_timed(sent, came)
        self.violations += judge_parquet(self.root / "parquet", came)
        self.facts["timed"] = {
            "acknowledged": int(np.count_nonzero(sent.acknowledged)),
            "came": int(np.count_nonzero(came.came)),
            "late_max_ms": came.late_max_ms,
            "told": sent.told,
        }


async def count_waiting(client: ledgermq.Client) -> int:
    return sum(bundle.messages for bundle in (await client.list_delayed(messages_max=0)).bundles)


async def until_freed(url: str, limit_s: float) -> None:
    """Wait until delivery has passed all that flushes left in memory: only then the log starts of intakes
    move, and segments go. Raises TimeoutError.
    """
    async with asyncio.timeout(limit_s), await open_store(url, sources=Sources()) as store:
        cluster = await read_cluster(store)
        while True:
            found, _ = await read_timers(store, cluster, Sources(), Problems().collecting, blocks=False)
            if all(one.state.intake_start() >= one.state.flushed.end_offset for one in found):
                return
            await asyncio.sleep(2.0)
