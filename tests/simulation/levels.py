"""List the levels of simulation by name: `ledger` (one ledger whole, fast), `rounds` (compaction), and so on."""

from __future__ import annotations

from tests.simulation import demands_on_clusters, demands_on_cuts, demands_on_kafka, demands_on_ledgers
from tests.simulation.access_run import AccessRun
from tests.simulation.archive_ambushes import ArchivesRun
from tests.simulation.cluster_run import ClusterRun
from tests.simulation.cuts_run import CutsRun
from tests.simulation.damage_run import DamageRun
from tests.simulation.exclusive_run import ExclusiveRun
from tests.simulation.groups_run import GroupsRun
from tests.simulation.ids_run import IdsRun
from tests.simulation.kafka_run import KafkaRun
from tests.simulation.keyed_run import KeyedRun
from tests.simulation.ledger_run import LedgerRun
from tests.simulation.moves_run import MovesRun
from tests.simulation.queries_run import QueriesRun
from tests.simulation.queues_run import QueuesRun
from tests.simulation.result import Make
from tests.simulation.sinks_run import SinksRun
from tests.simulation.tables_run import TablesRun
from tests.simulation.timers_run import TimersRun
from tests.simulation.transactions_run import TransactionsRun

LEVELS: dict[str, Make] = {
    "ledger": LedgerRun,
    "ids": IdsRun,
    "moves": MovesRun,
    "queries": QueriesRun,
    "rounds": ArchivesRun,
    "keyed": KeyedRun,
    "damage": DamageRun,
    "sinks": SinksRun,
    "tables": TablesRun,
    "cluster": ClusterRun,
    "groups": GroupsRun,
    "transactions": TransactionsRun,
    "timers": TimersRun,
    "queues": QueuesRun,
    "access": AccessRun,
    "exclusive": ExclusiveRun,
    "kafka": KafkaRun,
    "cuts": CutsRun,
}

MUST_HAPPEN = {
    **demands_on_ledgers.MUST_HAPPEN,
    **demands_on_clusters.MUST_HAPPEN,
    **demands_on_cuts.MUST_HAPPEN,
    **demands_on_kafka.MUST_HAPPEN,
}
RARE = {**demands_on_ledgers.RARE, **demands_on_clusters.RARE, **demands_on_cuts.RARE, **demands_on_kafka.RARE}

SEEDS_FOR_COMMON = 60
"""CI runs as many. What a third of the seeds reach they miss once in 10**10 runs; should it be a
sixth, which 25 seeds cannot rule out, once in 50,000.
"""
SEEDS_FOR_RARE = 200


def demanded(level: str, seeds: int) -> list[str]:
    """Return what so many seeds of a level have to reach."""
    if seeds < SEEDS_FOR_COMMON:
        return []
    return [name for name in MUST_HAPPEN[level] if seeds >= SEEDS_FOR_RARE or name not in RARE[level]]
