"""Sleep at the worst moment: just before a request, until the world has moved past the state that
the request assumes.

    a put       until another process has created the object at its key and deleted it again: then
                the put "wins", and must not count
    a delete    until some more checkpoints have been put: then the object that it was about to
                delete may be another one

Every rule about looking again, about fences and about undeletable objects comes from these places
(docs/design.md); dice alone find them once in hundreds of seeds. A seed draws which kinds of
objects lie in ambush, and how often.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ledgermq_ledger.delta.names import FOLDER
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.keys import MERGED, original_of, parse_keyed
from ledgermq_ledger.log.segments.segment import decode_tail
from ledgermq_ledger.object_store.contract import Buffer

KINDS = ("claims", "segments", "checkpoints", "compactions", "files", "snapshots", "parquet")
_KIND = re.compile(r"(?:ledgers/(\d+)/)?(segments|checkpoints|compactions|files|snapshots|parquet)/")


@dataclass(frozen=True, slots=True)
class Ambush:
    """`shares`: by kind of object, the share of requests before which their process sleeps.
    `seconds_max`: it never sleeps longer.

    `sleepers_max`: so many at a time, for some process has to go on. `whose`, if not empty: the one process that
    sleeps; `where`: what the key contains; `before`: the requests before which it does.

    `late_s`, if not 0: so long it sleeps before a put, whatever happens meanwhile. So it comes late, and has to take
    its permission again: before that it sleeps as said above.
    """

    shares: Mapping[str, float] = field(default_factory=dict)
    seconds_max: float = 60.0
    commits: int = 2
    sleepers_max: int = 1
    whose: str = ""
    before: tuple[str, ...] = ("put", "permission", "delete")
    where: str = ""
    late_s: float = 0.0


NO_AMBUSH = Ambush()


def kind_of(key: str, buffers: Sequence[Buffer] = ()) -> str:
    """What is at `key`: one of KINDS, or nothing that an ambush waits for.

    A segment that opens a term is one of the "claims".
    """
    found = _KIND.match(key)
    key = original_of(key) or key
    if f"/{FOLDER}" in key:
        return "table logs"
    if found is None:
        if key.startswith(MERGED):
            return "merged"
        keyed = parse_keyed(key)
        return "" if keyed is None else "keyed files" if keyed.is_file else "versions"
    if found[2] == "segments" and buffers:
        index = decode_tail(b"".join(buffers), int(found[1]), int(key.rpartition("/")[2])).index
        return "claims" if index.kind == fmt.CLAIM else "segments"
    return found[2]


def draw_ambush(r: random.Random, likely: Sequence[str] = KINDS) -> Ambush:
    """One or two kinds of `likely`, which may name one several times."""
    kinds = r.sample(likely, r.choice((1, 2)))
    return Ambush(
        {kind: r.choice((0.1, 0.3, 1.0)) for kind in kinds},
        r.choice((5.0, 20.0, 40.0)),
        r.choice((1, 2, 5)),
        r.choice((1, 1, 2)),
    )
