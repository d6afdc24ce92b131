"""Remove heartbeats: a heartbeat may be removed when it has not changed for an hour. A broker that
is silent for so long has ended, and no safety rests on its heartbeat (design O1).

A sweep judges by the store's dates, a broker by its own clock and the heartbeats that it has seen
(`ledgermq_broker.cluster.membership`). A heartbeat that was written again meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq_ledger import keys
from ledgermq_ledger.garbage import found
from ledgermq_ledger.garbage.found import Kind, Removable
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore

AGE_MS = 60 * 60 * 1000


async def find(store: ObjectStore, now_ms: int) -> list[Removable]:
    """Return old heartbeats. `now_ms`: by the store's clock. A younger heartbeat does not wait: it
    is in use.
    """
    return [
        Removable.of(Kind.HEARTBEAT, info, f"broker {broker} is gone", AGE_MS)
        async for info in store.list(keys.BROKERS)
        if (broker := keys.parse_broker(info.key)) is not None and now_ms - info.modified_ms >= AGE_MS
    ]


async def remove(store: ObjectStore, heartbeats: Sequence[Removable]) -> None:
    for each in heartbeats:
        try:
            if (await store.head(each.key)).modified_ms == each.modified_ms:
                await found.delete(store, [each])
        except ObjectMissing:
            continue
