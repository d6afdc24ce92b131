"""The memory of hunts: what is remembered is proven anew, and what no longer catches is said and hunted from 0."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.judges.violation import Violation
from tests.simulation.all_mutants import MUTANTS
from tests.simulation.caught import CAUGHT, Hunted, Record, hunt_with_record, read, remember, write
from tests.simulation.hunt import Told, in_order_of_cost, summary, told
from tests.simulation.loop import SimulatedLoop
from tests.simulation.mutants import Mutant, hunt
from tests.simulation.result import Result, finish, simulate
from tests.simulation.world import World


class Product:
    """It keeps its rule. Without it the seeds of `shown` see that, and seed 2 fails at all times where `ill` is set."""

    keeps_its_rule = True
    shown = frozenset((2, 5, 7))
    ill = False


class Run:
    def __init__(self, loop: SimulatedLoop, seed: int, lines_kept: int | None) -> None:
        self.world = World(loop, seed, lines_kept)

    async def run(self) -> Result:
        seed = self.world.seed
        if (not Product.keeps_its_rule and seed in Product.shown) or (Product.ill and seed == 2):
            self.world.violations.append(Violation("rule", f"broken at seed {seed}"))
        return finish(self.world)


def forget_the_rule(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Product, "keeps_its_rule", False)


MUTANT = Mutant("rule-forgotten", "ledger", forget_the_rule, "The rule is not kept.")


def record(seed: int, level: str = "ledger") -> Record:
    return Record("rule-forgotten", level, seed, 3, 0.5, 1.5)


def hunted(known: Record | None, mutant: Mutant = MUTANT) -> Hunted:
    return hunt_with_record(mutant, Run, range(10), known, time.process_time)


def test_a_hang_alone_counts_for_a_bug_that_hangs_and_for_no_other() -> None:
    hanging = replace(MUTANT, hangs=True)
    for found, mutant, kinds in [
        (set(), MUTANT, {"stuck"}),
        (set(), MUTANT, {"stuck", "bug"}),
        ({"stuck"}, hanging, {"stuck", "crash"}),
        ({"rule", "stuck"}, MUTANT, {"rule", "stuck", "bug"}),
        (set(), hanging, {"bug", "crash"}),
    ]:
        assert mutant.catch(kinds) == found


class LongRun(Run):
    """It breaks a rule at once, or after an hour, and goes on for a day."""

    async def run(self) -> Result:
        for second in range(24 * 3600):
            if second == 3600 * self.world.seed:
                self.world.violations.append(Violation("rule", f"broken after {second} s"))
            await asyncio.sleep(1)
        return finish(self.world)


def test_a_run_ends_where_its_mutant_is_caught() -> None:
    hanging = hunt(MUTANT, LongRun, [0]).result
    later = hunt(MUTANT, LongRun, [1]).result
    whole = simulate(LongRun, 0)
    assert hanging is not None
    assert later is not None
    assert (hanging.kinds, later.kinds) == ({"rule"}, {"rule"})
    assert hanging.virtual_s < 3600 < later.virtual_s < 3 * 3600
    assert whole.virtual_s >= 24 * 3600


def test_the_recorded_seed_alone_is_run() -> None:
    found = hunted(record(7))
    assert (found.caught.seed, found.caught.tried, found.stale, found.new) == (7, 1, None, None)
    assert found.caught.result is not None
    assert found.caught.result.kinds == {"rule"}
    assert "as recorded" in told(found, 0.5).lines[0]


def test_a_record_that_catches_no_more_is_said_and_the_hunt_begins_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Product, "shown", frozenset((5,)))
    found = hunted(record(7))
    assert found.stale == record(7)
    assert found.new is not None
    assert (found.new.seed, found.new.tried) == (5, 6)
    one = told(found, 1.0)
    assert one.lines[0].endswith("its record is stale: seed 7 no longer catches it")
    assert one.stale
    assert not one.failed


def test_the_summary_counts_by_level_and_names_what_needs_work() -> None:
    found = [
        Told([], False, None, False, 1.4, "a", "ledger"),
        Told([], True, None, True, 2.0, "b", "ledger"),
        Told([], False, record(5), True, 0.6, "c", "rounds"),
    ]
    said = "\n".join(summary(found, 3.0)).split()
    assert said[5:13] == ["ledger", "1", "2", "3", "rounds", "1", "1", "1"]
    assert "2 of 3 mutants caught, 4 s of CPU, 3 s" in " ".join(said)
    assert " ".join(said).endswith("writes new seeds): b, c NOT CAUGHT: b")


def test_a_mutant_that_survives_fails_although_it_has_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Product, "shown", frozenset())
    found = hunted(record(7))
    assert (found.caught.seed, found.caught.tried, found.stale, found.new) == (None, 10, record(7), None)
    one = told(found, 1.0)
    assert one.failed
    assert "SURVIVED 10 seeds" in one.lines[-1]


def test_without_a_record_or_with_one_of_another_level_the_hunt_begins_at_0() -> None:
    for known in (None, record(7, "rounds")):
        found = hunted(known)
        assert found.new is not None
        assert (found.new.level, found.new.seed, found.new.tried) == ("ledger", 2, 3)


def test_likely_seeds_are_tried_first() -> None:
    found = hunted(None, Mutant("rule-forgotten", "ledger", forget_the_rule, "…", lambda seed: seed >= 6))
    assert found.new is not None
    assert (found.new.seed, found.new.tried) == (7, 2)


def test_a_seed_that_fails_without_the_bug_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Product, "ill", True)
    found = hunted(None)
    assert found.unclean == (2,)
    assert found.new is not None
    assert (found.new.seed, found.new.tried) == (5, 6)
    one = told(found, 1.0)
    assert one.failed, "seed 2 is a fault of the product"
    assert "seed 2 of ledger fails without the bug too" in one.lines[0]


def test_records_are_written_by_name_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "caught.tsv"
    assert read(path) == {}
    other = Record("a-name-before", "rounds", 118, 119, 2.5, 100.0)
    remember(record(7), path)
    remember(other, path)
    remember(record(5), path)
    assert read(path) == {"a-name-before": other, "rule-forgotten": record(5)}
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[1:] == [other.line(), record(5).line()]
    write({}, path)
    assert read(path) == {}


@pytest.mark.parametrize("text", ["mutant\tseed\n", "mutant\tlevel\tseed\ttried\tseed_s\thunt_s\na\tledger\t3\n"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "caught.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="columns"):
        read(path)


def test_those_with_a_record_come_first_and_the_longest_of_them_foremost() -> None:
    records = {
        "b": Record("b", "ledger", 0, 1, 0.5, 0.5),
        "c": Record("c", "ledger", 0, 1, 9.0, 9.0),
    }
    assert in_order_of_cost(["a", "b", "c", "d"], records) == ["c", "b", "a", "d"]


def test_the_records_are_of_mutants_that_there_are_in_their_level() -> None:
    records = read(CAUGHT)
    assert records
    levels = {name: MUTANTS[name].level for name in records if name in MUTANTS}
    assert levels == {name: known.level for name, known in records.items()}
