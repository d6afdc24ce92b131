"""`ledgermq` with one of the simulation's mutants planted, to see that a chaos run catches it.

python -m tests.chaos.broken no-fence-check broker file:///…
"""

from __future__ import annotations

import sys

import pytest

from ledgermq.cli.main import main
from tests.constants_main import take_constants
from tests.simulation import hunt
from tests.simulation.mutants import MUTANTS

assert callable(hunt.main)  # it has loaded all mutants

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)].apply(pytest.MonkeyPatch())
    take_constants()
    main()
