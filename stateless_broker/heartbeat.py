"""`brokers/<broker-id>.json`: what a broker says of itself. Liveness only; nothing safe depends on
it.

    {"version": 1, "broker": "…", "address": "host:port", "incarnation": 3, "session": "…", "counter": 17,
     "bundles": {"1": 4, "3": 9}, "releasing": [3], "troubles": {"2": "…"}, "leaving": false, "peer_address": "", "alarms": ["…"],
     "rack": ""}

`counter` grows when the content changes, not with every beat: an unchanged heartbeat keeps its
ETag, only its time advances, so that others see it alive without reading it again. `incarnation` is
one more than the highest that this address or id had before; `session` is drawn at the start and
settles ties.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

VERSION = 1


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`bundles`: owned, with the epoch of the term; `releasing`: about to be handed over, or handed
    over and not claimed here since.

    `troubles`: bundles that it should own and cannot serve, and why. `leaving`: it hands over
    everything. `peer_address`: where the other brokers reach it, if not at `address`, which remains
    its name among them. `alarms`: what is amiss with what it does serve.
    `rack`: where it runs, "" if it was not set.
    """

    broker: str
    address: str
    incarnation: int
    session: str
    counter: int = 0
    bundles: dict[int, int] = field(default_factory=dict)
    troubles: dict[int, str] = field(default_factory=dict)
    releasing: tuple[int, ...] = ()
    leaving: bool = False
    peer_address: str = ""
    alarms: tuple[str, ...] = ()
    rack: str = ""

    def supersedes(self, other: Heartbeat) -> bool:
        """Of two processes with one address or one id, the later incarnation stays."""
        return (self.incarnation, self.session) > (other.incarnation, other.session)


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return json.dumps({"version": VERSION, **asdict(heartbeat)}, sort_keys=True).encode()


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """None for what no LedgerMQ broker of this version wrote: a heartbeat that cannot be read is as
    good as none.
    """
    try:
        found: Any = json.loads(data)
        return Heartbeat(
            broker=str(found["broker"]),
            address=str(found["address"]),
            incarnation=int(found["incarnation"]),
            session=str(found["session"]),
            counter=int(found["counter"]),
            bundles={int(bundle): int(epoch) for bundle, epoch in found["bundles"].items()},
            troubles={int(bundle): str(why) for bundle, why in found["troubles"].items()},
            releasing=tuple(int(bundle) for bundle in found.get("releasing", ())),
            leaving=bool(found["leaving"]),
            peer_address=str(found.get("peer_address", "")),
            alarms=tuple(str(alarm) for alarm in found.get("alarms", ())),
            rack=str(found.get("rack", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
