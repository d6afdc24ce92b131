"""Kill a broker at the moment at which it has stored something that nobody has heard of yet, in some runs of level
*kafka*: a partition withdrawn from a member of KIP-848, or the end of a transaction. Where it is left alone behind
an end, a program looks at once (`kafka_restorer`).

The next owner has nothing but the log to tell what was promised. Dice alone kill a broker at this moment once in
hundreds of seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from ledgermq_broker.transactions.state.format import ledgermq_transactions_pb2 as stored
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_offsets.state.records import MemberEntry, decode
from tests.simulation.cluster_broker import ClusterBroker
from tests.simulation.kafka_plan import KafkaPlan
from tests.simulation.loop import Process
from tests.simulation.stored_segments import StoredBatch
from tests.simulation.world import World

KILLED_MAX = 5
SHARE = 0.8
AWAY_S_MAX = 3.0
END = "the end of a transaction"


class KafkaAmbush:
    """`brokers`: the incarnations that are at work now. `back(process, seconds)`: start it again after so long.
    `ended`: called when the end of a transaction was stored, and its owner goes on.
    """

    def __init__(
        self,
        world: World,
        own: KafkaPlan,
        brokers: Mapping[str, ClusterBroker],
        back: Callable[[Process, float], None],
        ended: Callable[[], None],
    ) -> None:
        self._world = world
        self._own = own
        self._brokers = brokers
        self._back = back
        self._ended = ended
        self._random = random.Random(f"kafka ambush {world.seed}")
        self._left = KILLED_MAX

    def stored(self, bundle: int, index: fmt.SegmentIndex) -> None:
        """Note a segment that was put just now."""
        owner = None if self._world.healed else self._owner(bundle, index.epoch)
        what = "" if owner is None else self._what(owner, bundle, index)
        if owner is None or not what:
            return
        if not self._left or self._random.random() >= SHARE:
            if what == END:
                self._ended()
            return
        self._left -= 1
        self._world.note(owner.name, f"killed, it has stored {what} in bundle {bundle}")
        self._world.coverage.saw(f"an owner was killed when it had stored {what}")
        owner.process.kill()
        self._back(owner.process, self._random.uniform(0, AWAY_S_MAX))

    def _owner(self, bundle: int, epoch: int) -> ClusterBroker | None:
        for served in self._brokers.values():
            opened = served.broker.ownership.opened.get(bundle) if served.broker is not None else None
            if opened is not None and opened.epoch == epoch and served.process.alive:
                return served
        return None

    def _what(self, owner: ClusterBroker, bundle: int, index: fmt.SegmentIndex) -> str:
        assert owner.broker is not None
        by_name = owner.broker.metadata.catalog.topics_by_name
        looks = {keys.TRANSACTIONS_TOPIC: (_is_end, END)}
        if self._own.kills_at_withdrawals:
            looks[keys.OFFSETS_TOPIC] = (_is_withdrawal, "a withdrawal")
        _, data = self._world.store.segments[bundle][index.slot]
        for name, (is_it, what) in looks.items():
            topic = by_name.get(name)
            mine = [entry for entry in index.batches if topic is not None and entry.topic_id == topic.id]
            rows = [row for entry in mine for row in StoredBatch(entry, data).rows]
            if any(is_it(key or b"", value) for key, value in rows):
                return what
        return ""


def _is_withdrawal(key: bytes, value: bytes | None) -> bool:
    if not key.startswith(b"member/") or value is None:
        return False
    entry = decode(key, value)
    assert isinstance(entry, MemberEntry)
    return entry.value is not None and any(held.withdrawn for held in entry.value.held.values())


def _is_end(key: bytes, value: bytes | None) -> bool:
    if not key.startswith(b"id/") or value is None:
        return False
    known = stored.Id.FromString(value)
    return bool(known.number) and not known.complete
