"""Encode heartbeats: `brokers/<broker-id>.json`, what a broker announces about itself. Liveness
only; nothing safe depends on it.

    {"version": 1, "broker": "…", "address": "host:port", "incarnation": 3, "session": "…", "counter": 17,
     "bundles": {"1": 4, "3": 9}, "releasing": [3], "troubles": {"2": "…"}, "leaving": false,
     "peer_address": "", "alarms": ["…"], "rack": "", "release": "0.2.0",
     "features": ["transactions", "timers", "rules"], "public_key": "…", "draining": false,
     "loads": {"1": 3145728}, "promised": {"3": "…"}, "kafka_address": "host:9092", "kafka_node": 71254}

`counter` grows when the content changes, not with every beat. An unchanged heartbeat keeps its ETag
and only its time advances, so other brokers see it alive without reading it again. `incarnation` is
one more than the highest that this address or id had before. `session` is drawn at the start and
breaks ties. Keys are added without another version: a broker reads those that it knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

VERSION = 1
LOAD_MAX = 2**53
"""Larger than that of any broker; a damaged heartbeat may have any number."""

KAFKA_NODE_MAX = 2**30 - 1
"""Clients of the Kafka protocol name coordinators by 2**31 - 1 less the number of their broker."""

RULES = "rules"
"""Knows access rules and tokens, and proves to other brokers that it is one."""
QUOTAS = "quotas"
"""Binds callers by quotas."""
BUDGETS = "quotas in dollars"
"""Binds principals by what their requests to the store cost. Earlier releases ignore the limit, and drop it."""
ADDED_BUNDLES = "added bundles"
"""Follows the number of bundles of the cluster, which may grow."""
ENFORCING = "rules enforced"
"""Judges every call by the rules. It depends on a setting, so it is not among `COMMON`."""
LOADS = "loads"
"""Announces the loads of its bundles, and lets them move for load while every live broker does."""
NEAR = "bundles that follow their bytes"
"""Hands bundles to the rack of most of their bytes, and lets them stay there while every live broker does."""
MOVES = "moves"
"""Carries moves of partitions between bundles through."""
UNDELETE = "topics that can be brought back"
"""Keeps deleted topics for their grace."""
CLASSIC_GROUPS = "groups of the Kafka protocol"
"""Reads the records of classic groups, which earlier releases refuse with their whole partition."""
KAFKA_MEMBERS = "members of our groups that speak the Kafka protocol"
"""Assigns partitions to them as to our own, and knows them by their records."""
KAFKA_TRANSACTIONS = "transactions of the Kafka protocol"
"""Reads what these store besides our own transactions, and counts what a bundle has staged of one."""
KAFKA_RENEWALS = "transactions of the Kafka protocol with an epoch each"
"""Keeps the epoch with which a producer goes on after a transaction. Earlier releases lose it, and fence it."""
KAFKA_SHARES = "share groups of the Kafka protocol"
"""Leases messages to their members. Clients end with an error at a broker that does not know these requests."""
SCRAM = "passwords by SCRAM"
"""Takes them on the Kafka port. Earlier releases refuse clients that offer one."""
TABLES = "tables of topics"
"""Deletes no file that a version of a topic's table names, and keeps these tables."""
ICEBERG_TABLES = "Iceberg tables of topics"
"""Keeps them. Earlier releases refuse the catalog with the settings of such a topic."""
SCHEMAS = "schemas"
"""Serves the schemas in the catalog, and gives the next ids. Earlier releases keep the records, and pass over them."""
PINS = "cuts of the cluster"
"""Reads checkpoints with pins, which earlier releases refuse, holds decisions while a cut is taken, and deletes nothing
that a cut names."""
CUT_DELETIONS = "deletions of topics with their cuts"
"""Asks for the right `cluster` before it passes such a deletion on to the controller, which takes a broker's word.
Earlier releases ask for `delete` alone, and pass the field, which they do not know, on."""
COMMON = (
    RULES,
    QUOTAS,
    BUDGETS,
    ADDED_BUNDLES,
    LOADS,
    NEAR,
    MOVES,
    UNDELETE,
    CLASSIC_GROUPS,
    KAFKA_MEMBERS,
    KAFKA_TRANSACTIONS,
    KAFKA_RENEWALS,
    KAFKA_SHARES,
    SCRAM,
    TABLES,
    ICEBERG_TABLES,
    SCHEMAS,
    PINS,
    CUT_DELETIONS,
)
"""What a broker of this release has and earlier ones lack, besides the features of internal topics, which their
declarations name (`ledgermq_broker.features`). The controller puts into the catalog what needs a feature only when
every broker has it.
"""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """`bundles`: owned, with the epoch of the term; `releasing`: about to be handed over, or handed
    over and not claimed here since.

    `troubles`: bundles that it should own and cannot serve, with the reason. `leaving`: it hands
    over everything, and takes nothing. `draining`: it does so because an operator drained it; its
    process stays, and takes bundles if no other broker is there. Earlier releases read `leaving` alone.
    `peer_address`: where other brokers reach it, if not at `address`, which remains its name among
    them. `alarms`: problems of what it does serve. `rack`: where it runs, ""
    if not set. `release`: of LedgerMQ, "" if it is one that does not announce it. `features`: see
    `COMMON`. `public_key`: Ed25519, in hexadecimal; the broker signs its calls to other brokers with the
    private half, which only its process has. `loads`: of the owned bundles that are not idle, see `loads`.
    `promised`: bundles that this broker hands over for load, each with the broker that is to take it.
    `kafka_address`: where clients of the Kafka protocol reach it, "" if they do not. `kafka_node`: its number among
    them, 0 if it has none.
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
    release: str = ""
    features: tuple[str, ...] = ()
    public_key: str = ""
    draining: bool = False
    loads: dict[int, int] = field(default_factory=dict)
    promised: dict[int, str] = field(default_factory=dict)
    kafka_address: str = ""
    kafka_node: int = 0

    def supersedes(self, other: Heartbeat) -> bool:
        """Return whether this process stays: of two processes with one address or one id, the later
        incarnation does.
        """
        return (self.incarnation, self.session) > (other.incarnation, other.session)


_NAMES = tuple(each.name for each in fields(Heartbeat))


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    content = {name: getattr(heartbeat, name) for name in _NAMES}  # `asdict` copies the dictionaries, deeply
    return json.dumps({"version": VERSION, **content}, sort_keys=True).encode()


def decode_heartbeat(data: bytes) -> Heartbeat | None:
    """Return the heartbeat, or None if no LedgerMQ broker of this version wrote it: an unreadable
    heartbeat counts as none.
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
            release=str(found.get("release", "")),
            features=tuple(str(feature) for feature in found.get("features", ())),
            public_key=str(found.get("public_key", "")),
            draining=bool(found.get("draining", False)),
            loads={int(bundle): min(max(0, int(load)), LOAD_MAX) for bundle, load in found.get("loads", {}).items()},
            promised={int(bundle): str(broker) for bundle, broker in found.get("promised", {}).items()},
            kafka_address=str(found.get("kafka_address", "")),
            kafka_node=min(max(0, int(found.get("kafka_node", 0))), KAFKA_NODE_MAX),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
