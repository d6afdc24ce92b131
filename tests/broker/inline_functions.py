"""Filter functions that run at once, within the broker's event loop, for virtual time and simulations."""

from __future__ import annotations

from collections.abc import Mapping

from ledgermq.filters.functions import FilterFunction, messages_of
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_broker.filter_functions.judging import BatchPlace, FilterFunctionCounts, Judgement, unknown
from ledgermq_broker.filter_functions.processes import OUTCOME_OF
from ledgermq_broker.filter_functions.worker import verdict
from ledgermq_ledger.log.segments.stored_batch import StoredBatch


class InlineFunctions:
    """`functions` by name."""

    def __init__(self, functions: Mapping[str, FilterFunction], counts: FilterFunctionCounts | None = None) -> None:
        self.functions = dict(functions)
        self.judged = 0
        """Batches that were judged."""
        self._counts = counts or FilterFunctionCounts()

    async def judge(self, function: str, place: BatchPlace, batch: StoredBatch) -> Judgement:
        if function not in self.functions:
            raise unknown(function, self.functions)
        self.judged += 1
        messages = messages_of(decode_batch(batch.data))
        outcomes = [OUTCOME_OF[verdict(self.functions[function], message)[0]] for message in messages]
        for outcome in set(outcomes):
            self._counts.judged(function, outcome, outcomes.count(outcome))
        return Judgement.of(outcomes)

    async def close(self) -> None:
        pass
