"""Judge that no former coordinator answers (rule X2): a question that arrives after another broker
has claimed the coordinator's bundle gets no final answer from the broker that had it before.

What such a broker knows may be outdated, so a fence check comes before each answer, also one that
writes nothing. Most of these answers happen to be true, so they are judged themselves, not only
the harm that they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from crc32c import crc32c

from ledgermq.errors import LedgerMQError
from ledgermq.protocol.methods import Method
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.model import Violation
from tests.simulation.world import World

NAMES: Mapping[str, Callable[[Any], str]] = {
    "init_transactions": lambda request: request.transactional_id,
    "end_transaction": lambda request: request.transaction.transactional_id,
    "transaction_outcome": lambda request: request.transactional_id,
    "describe_transaction": lambda request: request.transactional_id,
    "ask_transaction": lambda request: request.transaction.transactional_id,
}
"""Method -> the transactional id that its request is about."""


class FormerOwners:
    """`brokers`: the incarnations that are at work now, by address."""

    def __init__(self, world: World, brokers: Mapping[str, ClusterBroker]) -> None:
        self._world = world
        self._brokers = brokers
        self._claims: dict[int, tuple[int, int]] = {}
        """Bundle -> the slot that was looked at last, and the epoch of the newest claim up to it."""

    def arrived(self, address: str, method: Method, request: Any) -> Callable[[Any], None]:
        """Note a call; return what is to be called with its answer, or its error."""
        if method.attribute not in NAMES or (served := self._brokers[address]).broker is None:
            return _no_judgement
        name = NAMES[method.attribute](request)
        bundle = self._bundle_of(served, name)
        if bundle is None:
            return _no_judgement
        newest = self.newest_epoch(bundle)
        epoch = self._epoch(served, bundle)
        if epoch is None or epoch >= newest:
            return _no_judgement
        self._world.coverage.saw("a question came to a former coordinator")

        def answered(answer: Any) -> None:
            now = self._epoch(served, bundle)
            is_final = not isinstance(answer, LedgerMQError) or not answer.retriable
            if is_final and (now is None or now < newest):
                text = f"{address}, fenced in bundle {bundle}, answered {method.name} about {name}: {answer!r}"
                self._world.violations.append(Violation("former coordinator", text[:300]))

        return answered

    def _bundle_of(self, served: ClusterBroker, name: str) -> int | None:
        """Return the bundle of the id's coordinator; None before the broker knows of any."""
        assert served.broker is not None
        topic = served.broker.metadata.catalog.topics_by_name.get(keys.TRANSACTIONS_TOPIC)
        if topic is None:
            return None
        return topic.bundles[crc32c(name.encode()) % topic.settings.transaction_coordinators]

    def newest_epoch(self, bundle: int) -> int:
        """Return the epoch of the newest valid claim, below which no slot is missing."""
        store = self._world.store
        slot, epoch = self._claims.get(bundle, (0, 0))
        while slot + 1 in store.segments[bundle]:
            slot += 1
            index, _ = store.segments[bundle][slot]
            if index.kind == fmt.CLAIM and store.is_valid(bundle, slot):
                epoch = index.epoch
        self._claims[bundle] = slot, epoch
        return epoch

    def _epoch(self, served: ClusterBroker, bundle: int) -> int | None:
        assert served.broker is not None
        owner = served.broker.ownership.opened.get(bundle)
        return None if owner is None else owner.epoch


def _no_judgement(answer: Any) -> None:
    return None
