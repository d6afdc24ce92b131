"""The levels of simulation by name: `ledger` (one ledger whole, fast), `rounds` (Parquet compaction), `cluster` (everything)."""

from __future__ import annotations

from tests.simulation.cluster_run import ClusterRun
from tests.simulation.ledger_run import LedgerRun
from tests.simulation.result import Make
from tests.simulation.rounds_run import RoundsRun

LEVELS: dict[str, Make] = {"ledger": LedgerRun, "rounds": RoundsRun, "cluster": ClusterRun}

MUST_HAPPEN: dict[str, tuple[str, ...]] = {
    "ledger": (
        "a term was opened",
        "a term was released",
        "a void segment",
        "an object was created again after it was deleted",
        "a round was finished",
        "a fence happened while 2 puts or more were in flight",
        "a producer was not known any more",
        "a waiter was told that the term is over",
        "the latest offset was told after a fence check",
        "disturbance: pause",
        "disturbance: kill",
        "disturbance: clock jump",
        "store fault: before (put_if_absent)",
        "store fault: after (put_if_absent)",
        "store fault: later (put_if_absent)",
        "store fault: throttled (put_if_absent)",
    ),
    "cluster": (
        "a term was opened",
        "a void segment",
        "a plan was finished",
        "a round was finished by a compactor",
        "a topic was created",
        "a topic was deleted",
        "a record's fate: ok",
        "a record's fate: info",
        "latest offsets were told",
        "disturbance: pause",
        "disturbance: kill",
        "disturbance: clock jump",
        "disturbance: graceful stop",
        "disturbance: network cut",
        "network: line broken",
    ),
}
"""What has to be reached at least once over the default seeds, or the simulation looks at too little."""
