"""Staged rows of Spark sinks that nobody will publish (docs/decisions/0024): what tasks, drivers
and whole queries left that were killed.

the epoch is done                            for good
a later epoch is the oldest that is decided  for good: it counts as done
nothing is decided                           STAGED_AGE_MS after they were put, for no driver decides about rows so old
decided, not done                            never: whoever goes on needs them
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from ledger import keys
from ledger.object_store.contract import ObjectInfo, ObjectStore

STAGED_AGE_MS = 7 * 24 * 3600 * 1000


@dataclass(slots=True)
class _Write:
    staged: list[tuple[int, ObjectInfo]] = field(default_factory=list)
    decided: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)


async def useless_staged_rows(store: ObjectStore) -> AsyncIterator[tuple[ObjectInfo, str, int]]:
    """(object, why, the age in ms that it must have).

    What is staged is listed first: what is decided or done then is so for good.
    """
    writes: dict[str, _Write] = {}
    async for info in store.list(keys.SINKS):
        if (name := keys.parse_sink(info.key)) is not None and name.kind == "staged":
            writes.setdefault(name.write, _Write()).staged.append((name.epoch, info))
    for name_of_write, write in writes.items():
        for kind, epochs in ((keys.sink_decided, write.decided), (keys.sink_done, write.done)):
            async for info in store.list(kind(name_of_write)):
                if (name := keys.parse_sink(info.key)) is not None:
                    epochs.add(name.epoch)
        for epoch, info in write.staged:
            if epoch in write.done or epoch < min(write.decided, default=0):
                yield info, f"epoch {epoch} of {name_of_write} is done", 0
            elif epoch not in write.decided:
                yield info, f"staged for epoch {epoch} of {name_of_write}, which was never decided", STAGED_AGE_MS
