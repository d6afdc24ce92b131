"""`make simulate LEVEL=models`: every protocol model, then every mutant of it until a seed catches
it.

python -m tests.models.run --seeds 60 [name …]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.models.access import ACCESS
from tests.models.branches.model import BRANCHES
from tests.models.cuts.model import CUTS
from tests.models.keyed_tables import KEYED_TABLES
from tests.models.ledger import LEDGER
from tests.models.merges.model import MERGES
from tests.models.moves import MOVES
from tests.models.parquet import ON_FILES, ON_S3
from tests.models.shares.model import SHARES
from tests.models.tables.model import TABLES
from tests.models.timed.model import TIMED
from tests.models.transactions.late_decisions import LATE_DECISIONS
from tests.models.transactions.model import TRANSACTIONS
from tests.models.typed import TYPED
from tests.models.undelete import UNDELETE
from tests.models.walk import Model, Violation

MODELS = {
    model.name: model
    for model in (
        LEDGER,
        ON_FILES,
        ON_S3,
        TRANSACTIONS,
        LATE_DECISIONS,
        TIMED,
        SHARES,
        MOVES,
        MERGES,
        ACCESS,
        UNDELETE,
        TABLES,
        KEYED_TABLES,
        TYPED,
        CUTS,
        BRANCHES,
    )
}
MUTANT_SEEDS = 1000
SEEDS_FOR_COVERAGE = 60


def walk_design(model: Model, seeds: range) -> bool:
    """Walk the model with all of its rules; print what it reached.

    False: a seed violates an invariant, or something was never reached.
    """
    reached: Counter[str] = Counter()
    failed = 0
    for seed in seeds:
        try:
            reached += model.walk(seed)
        except Violation as violation:
            failed += 1
            print(f"  seed {seed}: {violation}")
    for what, count in sorted(reached.items()):
        print(f"  {count:9} {what}")
    missed = [what for what in model.must_reach if not reached[what]] if len(seeds) >= SEEDS_FOR_COVERAGE else []
    for what in missed:
        print(f"  never reached: {what}")
    return not failed and not missed


def run_models(names: list[str], seeds: range) -> bool:
    """True: every model holds and every mutant is caught."""
    sound = True
    for name in names:
        model, begun = MODELS[name], time.monotonic()
        print(f"\nmodel {name}: {len(seeds)} seeds")
        sound = walk_design(model, seeds) and sound
        for mutant, rule in model.mutants.items():
            caught = model.catch(mutant, range(MUTANT_SEEDS))
            sound = sound and caught is not None
            print(
                f"  {mutant:32} "
                + (f"seed {caught[0]:4}: {caught[1][:100]}" if caught else f"SURVIVED {MUTANT_SEEDS} seeds: {rule}"),
                flush=True,
            )
        print(f"  {time.monotonic() - begun:.0f} s")
    return sound


def main() -> int:
    parser = argparse.ArgumentParser(description="Walk the models of the protocols, and hunt their mutants.")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    chosen = parser.parse_args()
    return (
        0 if run_models(chosen.names or list(MODELS), range(chosen.first_seed, chosen.first_seed + chosen.seeds)) else 1
    )


if __name__ == "__main__":
    sys.exit(main())
