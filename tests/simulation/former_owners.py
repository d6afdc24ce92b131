"""Judge that no former coordinator answers (rule X2): a question that arrives after another broker
has claimed the coordinator's bundle gets no final answer from the broker that had it before.

What such a broker knows may be outdated, so a fence check comes before each answer, also one that
writes nothing. Most of these answers happen to be true, so they are judged themselves, not only
the harm that they do.

A group's coordinator answers heartbeats, and commits that it has stored before, without a check: they stay
true whatever a successor did. So of these calls the final refusals alone are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ledgermq.errors import BY_CODE, LedgerMQError, Unauthorized
from ledgermq.protocol.methods import Method
from ledgermq_broker.groups.offsets_topic import partition_of as group_partition
from ledgermq_broker.transactions.routing.routed import partition_of
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from tests.judges.violation import Violation
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Question:
    """`name(request)`: the transactional id, or the group, that a request is about. `topic`: whose partition
    decides about it. `refusals_only`: other answers need no check.
    """

    topic: str
    name: Callable[[Any], str]
    refusals_only: bool = False


_OF_A_GROUP = Question(keys.OFFSETS_TOPIC, lambda request: request.group)
_REFUSED_BY_A_GROUP = replace(_OF_A_GROUP, refusals_only=True)

QUESTIONS: Mapping[str, Question] = {
    "init_transactions": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transactional_id),
    "end_transaction": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transaction.transactional_id),
    "transaction_outcome": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transactional_id),
    "describe_transaction": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transactional_id),
    "ask_transaction": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transaction.transactional_id),
    "add_to_transaction": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transaction.transactional_id),
    "join_transaction": Question(keys.TRANSACTIONS_TOPIC, lambda request: request.transaction.transactional_id),
    "fetch_committed": _OF_A_GROUP,
    "describe_group": _OF_A_GROUP,
    "group_heartbeat": _REFUSED_BY_A_GROUP,
    "commit_offsets": _REFUSED_BY_A_GROUP,
    "reset_offsets": _REFUSED_BY_A_GROUP,
    "stage_offsets": _REFUSED_BY_A_GROUP,
    "delete_group": _REFUSED_BY_A_GROUP,
    "sync_classic_group": _OF_A_GROUP,
    "leave_classic_group": _OF_A_GROUP,
    "classic_heartbeat": _REFUSED_BY_A_GROUP,
    "commit_for_generation": _OF_A_GROUP,
}
"""By method."""


class FormerOwners:
    """`brokers`: the incarnations that are at work now, by address."""

    def __init__(self, world: World, brokers: Mapping[str, ClusterBroker]) -> None:
        self._world = world
        self._brokers = brokers
        self._claims: dict[int, tuple[int, int]] = {}
        """Bundle -> the slot that was looked at last, and the epoch of the newest claim up to it."""

    def arrived(self, address: str, method: Method, request: Any) -> Callable[[Any], None]:
        """Note a call; return what is to be called with its answer, or its error."""
        question = QUESTIONS.get(method.attribute)
        if question is None or (served := self._brokers[address]).broker is None:
            return _no_judgement
        name = question.name(request)
        bundle = self._bundle_of(served, question.topic, name)
        if bundle is None:
            return _no_judgement
        newest = self.newest_epoch(bundle)
        epoch = self._epoch(served, bundle)
        if epoch is None or epoch >= newest:
            return _no_judgement
        self._world.coverage.saw("a question came to a former coordinator")

        def answered(answer: Any) -> None:
            now = self._epoch(served, bundle)
            if _is_final(answer, refusals_only=question.refusals_only) and (now is None or now < newest):
                text = f"{address}, fenced in bundle {bundle}, answered {method.name} about {name}: {answer!r}"
                self._world.violations.append(Violation("former coordinator", text[:300]))

        return answered

    def _bundle_of(self, served: ClusterBroker, topic_name: str, name: str) -> int | None:
        """Return the bundle of the coordinator; None before the broker knows of any."""
        assert served.broker is not None
        topic = served.broker.metadata.catalog.topics_by_name.get(topic_name)
        if topic is None:
            return None
        is_group = topic_name == keys.OFFSETS_TOPIC
        return topic.bundles[group_partition(name, topic.partitions) if is_group else partition_of(name, topic)]

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


def _is_final(answer: Any, *, refusals_only: bool) -> bool:
    """Return whether a caller takes an answer for the last word about what it asked. That it lacks a right is said by
    the rules, whichever broker has the group.
    """
    if isinstance(answer, LedgerMQError):
        return not (answer.retriable or isinstance(answer, Unauthorized))
    if not refusals_only:
        return True
    errors = [result.error for result in getattr(answer, "results", ())]
    codes = {error.code for error in errors} - {"", Unauthorized.code}
    return any(not BY_CODE.get(code, LedgerMQError).retriable for code in codes)


def _no_judgement(answer: Any) -> None:
    return None
