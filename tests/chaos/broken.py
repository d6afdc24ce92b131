"""`ledgermq` with one of the simulation's mutants planted, to see that a chaos run catches it.

python -m tests.chaos.broken no-fence-check broker file:///…
"""

from __future__ import annotations

import sys

import pytest

from ledgermq.cli.main import main
from tests.simulation.hunt import MUTANTS

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)].apply(pytest.MonkeyPatch())
    main()
