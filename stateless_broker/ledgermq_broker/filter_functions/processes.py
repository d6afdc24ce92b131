"""Filter functions in processes: one for each function, from its first use to the end of the broker.

A message has `message_s` for its verdict. If it takes longer, the process is ended, and the message is judged once
more by a new one, because a machine may stand still for a moment; the second time it is left out, and counted. So a
function that hangs costs time, and never the broker. A batch has BATCH_S for each call: then Unavailable is raised,
and the next call goes on with the message at which this one has stopped. So nothing is left out because a function
is slow.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection

from ledgermq.errors import Unavailable
from ledgermq_broker.filter_functions import worker
from ledgermq_broker.filter_functions.judging import BatchPlace, FilterFunctionCounts, Judgement, unknown
from ledgermq_broker.logs import get_logger
from ledgermq_ledger.log.segments.stored_batch import StoredBatch

START_S = 30.0
"""How long a process may take to begin, and to decode a batch."""
BATCH_S = 3.0
"""Less than the time after which a reader asks elsewhere."""
AGAIN_MS = 1000
"""Wait of readers whose function cannot be loaded."""
PIECE_BYTES = 65_536
BATCHES_KEPT_MAX = 256
"""Batches whose verdicts are kept, for readers that come again."""
OVERTIMES_MAX = 2
OUTCOME_OF = {worker.KEPT[0]: "kept", worker.LEFT_OUT[0]: "left_out", worker.RAISED[0]: "raised"}

log = get_logger(__name__)


class _Stopped(Exception):
    """The process has ended, or does not answer in time."""


class _Function:
    """One function and its process, which is started when it is needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.turn = asyncio.Lock()
        self._process: Process | None = None
        self._under_way: list[str] | None = None
        """The outcomes of a batch that the process goes on to judge, although no caller waits."""

    async def judge(self, batch: StoredBatch, outcomes: list[str], message_s: float) -> bool:
        """Add the outcomes that are missing; return False if some still are after BATCH_S. Raises _Stopped,
        Unavailable.
        """
        if self._under_way is not None and self._under_way is not outcomes:
            await self.end()  # it is still at another batch
        process = self._process or await self._start()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + BATCH_S
        try:
            if self._under_way is None:
                self._ask(process, batch, len(outcomes))
                self._under_way = outcomes
                self._take(outcomes, await self._read(process, START_S))
            while len(outcomes) < batch.record_count and loop.time() < until_s:
                self._take(outcomes, await self._read(process, message_s))
        except BaseException:
            await self.end()
            raise
        assert len(outcomes) <= batch.record_count, "a verdict for each record"
        if len(outcomes) == batch.record_count:
            self._under_way = None
        return self._under_way is None

    @staticmethod
    def _ask(process: Process, batch: StoredBatch, first: int) -> None:
        assert process.stdin is not None
        process.stdin.write(worker.REQUEST.pack(len(batch.data), first) + batch.data)

    @staticmethod
    def _take(outcomes: list[str], said: bytes) -> None:
        outcomes += [OUTCOME_OF[each] for each in said.replace(worker.BEGUN, b"")]

    async def _start(self) -> Process:
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", worker.__name__, self.name, stdin=PIPE, stdout=PIPE
        )
        try:
            said = await self._read(process, START_S)
        except _Stopped as stopped:
            said = worker.FAILED + str(stopped).encode()
        except BaseException:
            await self.end()
            raise
        if said == worker.READY:
            return process
        await self.end()
        why = said[1:].decode(errors="replace")
        log.error("a filter function cannot be loaded", function=self.name, why=why)
        raise Unavailable(f"the filter function {self.name!r} cannot be loaded: {why}", retry_after_ms=AGAIN_MS)

    @staticmethod
    async def _read(process: Process, timeout_s: float) -> bytes:
        assert process.stdout is not None
        try:
            async with asyncio.timeout(timeout_s):
                said = await process.stdout.read(PIECE_BYTES)
        except TimeoutError:
            raise _Stopped(f"no answer within {timeout_s} s") from None
        if not said:
            raise _Stopped("its process has ended")
        return said

    async def end(self) -> None:
        """End the process."""
        process, self._process, self._under_way = self._process, None, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()
        assert process.stdin is not None
        process.stdin.close()


class ProcessFunctions:
    """Runs the functions of these names. `message_s` returns the time that a message has."""

    def __init__(
        self, names: Collection[str], message_s: Callable[[], float], counts: FilterFunctionCounts | None = None
    ) -> None:
        self._functions = {name: _Function(name) for name in sorted(names)}
        self._message_s = message_s
        self._counts = counts or FilterFunctionCounts()
        self._outcomes: OrderedDict[tuple[str, BatchPlace], list[str]] = OrderedDict()
        """By function and batch, the outcomes of its first records, or of all; the latest batches come last."""
        self._overtimes: Counter[tuple[str, BatchPlace, int]] = Counter()
        """How often a message had no verdict in time; messages that have an outcome are dropped."""

    async def judge(self, function: str, place: BatchPlace, batch: StoredBatch) -> Judgement:
        """See `FilterFunctions.judge`."""
        found = self._functions.get(function)
        if found is None:
            raise unknown(function, self._functions)
        async with found.turn:
            outcomes = self._kept(function, place)
            begin = len(outcomes)
            try:
                await self._complete(found, place, batch, outcomes)
            finally:
                self._count(found, place, outcomes, begin)
        return Judgement.of(outcomes)

    async def _complete(self, function: _Function, place: BatchPlace, batch: StoredBatch, outcomes: list[str]) -> None:
        """Let the function judge what is missing. Raises Unavailable."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        while len(outcomes) < batch.record_count:
            try:
                goes_on = await function.judge(batch, outcomes, self._message_s())
            except _Stopped as stopped:
                self._note_stopped(function, place, outcomes, stopped)
                goes_on = loop.time() < begin_s + BATCH_S
            if not goes_on and len(outcomes) < batch.record_count:
                raise Unavailable(
                    f"the filter function {function.name!r} has judged {len(outcomes)} of {batch.record_count} records"
                    f" from offset {batch.base_offset} on, and goes on",
                    retry_after_ms=0,
                )

    def _note_stopped(self, function: _Function, place: BatchPlace, outcomes: list[str], stopped: _Stopped) -> None:
        """Count a message without a verdict; the second time it is left out."""
        at = (function.name, place, len(outcomes))
        self._overtimes[at] += 1
        times = self._overtimes[at]
        self._counts.stopped(function.name)
        log.warning(
            "a filter function gave no verdict on a message",
            function=function.name,
            topic_id=place.topic_id,
            partition=place.partition,
            offset=place.base_offset + len(outcomes),
            why=str(stopped),
            left_out=times >= OVERTIMES_MAX,
        )
        if times >= OVERTIMES_MAX:
            del self._overtimes[at]
            outcomes.append("overtime")

    def _kept(self, function: str, place: BatchPlace) -> list[str]:
        outcomes = self._outcomes.setdefault((function, place), [])
        self._outcomes.move_to_end((function, place))
        while len(self._outcomes) > BATCHES_KEPT_MAX:
            self._outcomes.popitem(last=False)
        while len(self._overtimes) > BATCHES_KEPT_MAX:
            del self._overtimes[next(iter(self._overtimes))]
        return outcomes

    def _count(self, function: _Function, place: BatchPlace, outcomes: list[str], begin: int) -> None:
        new = outcomes[begin:]
        for outcome, records in Counter(new).items():
            self._counts.judged(function.name, outcome, records)
        if "raised" in new:
            log.warning(
                "a filter function raised, and the messages are left out",
                function=function.name,
                topic_id=place.topic_id,
                partition=place.partition,
                first_offset=place.base_offset + begin + new.index("raised"),
                messages=new.count("raised"),
            )

    async def close(self) -> None:
        """End all processes."""
        for function in self._functions.values():
            await function.end()
