"""Remember which seed catches which mutant: `caught.tsv`, one line for each, by name.

A hunt tries the remembered seed first, so that a run over all mutants takes minutes and not hours. It stays a
proof: that seed is run anew, with the bug. When it no longer catches, the record is stale, the run says so, and the
hunt begins at seed 0, as for a mutant without a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.mutants import Caught, Mutant, hunt
from tests.simulation.result import Make, simulate

CAUGHT = Path(__file__).with_name("caught.tsv")
COLUMNS = ("mutant", "level", "seed", "tried", "seed_s", "hunt_s")


@dataclass(frozen=True, slots=True)
class Record:
    """What a hunt from seed 0 on found. `tried`: seeds until then, that one included.

    `seed_s`, `hunt_s`: CPU seconds of that seed with the bug, and of all that were tried.
    """

    mutant: str
    level: str
    seed: int
    tried: int
    seed_s: float
    hunt_s: float

    def line(self) -> str:
        return "\t".join(
            (self.mutant, self.level, str(self.seed), str(self.tried), f"{self.seed_s:.1f}", f"{self.hunt_s:.1f}")
        )


def parse(line: str) -> Record:
    """Raises ValueError."""
    cells = line.split("\t")
    if len(cells) != len(COLUMNS):
        raise ValueError(f"{line!r} has {len(cells)} columns; these are expected: {', '.join(COLUMNS)}")
    mutant, level, seed, tried, seed_s, hunt_s = cells
    return Record(mutant, level, int(seed), int(tried), float(seed_s), float(hunt_s))


def read(path: Path = CAUGHT) -> dict[str, Record]:
    """Return the records by mutant; none where there is no file. Raises ValueError."""
    if not path.exists():
        return {}
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    if header != "\t".join(COLUMNS):
        raise ValueError(f"{path} begins with {header!r}; expected are the columns {', '.join(COLUMNS)}")
    return {record.mutant: record for record in map(parse, lines)}


def write(records: Mapping[str, Record], path: Path = CAUGHT) -> None:
    lines = ["\t".join(COLUMNS), *(records[name].line() for name in sorted(records))]
    new = path.with_suffix(".new")
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.replace(path)


def remember(record: Record, path: Path = CAUGHT) -> None:
    """Add one record, or replace it."""
    write({**read(path), record.mutant: record}, path)


@dataclass(frozen=True, slots=True)
class Hunted:
    caught: Caught
    stale: Record | None = None
    """The record whose seed no longer catches it."""
    new: Record | None = None
    """What a hunt from 0 on found; None: the record holds, or the mutant survived."""
    unclean: tuple[int, ...] = ()
    """Seeds that fail without the bug too, so they prove nothing: the product or the simulation has a fault."""


def hunt_with_record(
    found: Mutant,
    make: Make,
    seeds: Iterable[int],
    record: Record | None,
    cpu_s: Callable[[], float],
    runs_clean: Callable[[Make, int], bool] = lambda make, seed: not simulate(make, seed).violations,
) -> Hunted:
    """Try the seed of the record, then `seeds`. `cpu_s`: the clock of this process.

    A seed that is found anew must run without the bug, and cleanly, before it counts.
    """
    if record is not None and record.level == found.level:
        caught = hunt(found, make, [record.seed])
        if caught.seed is not None:
            return Hunted(caught)
    unclean: list[int] = []
    hunt_s = 0.0
    left, tried = found.in_order(seeds), 0
    while True:
        begun_s = cpu_s()
        caught = hunt(found, make, left)
        hunt_s += cpu_s() - begun_s
        tried += caught.tried
        if caught.seed is None:
            return Hunted(caught, record, unclean=tuple(unclean))
        if runs_clean(make, caught.seed):
            break
        unclean.append(caught.seed)
        left = left[caught.tried :]
    new = Record(found.name, found.level, caught.seed, tried, caught.seed_s, hunt_s)
    return Hunted(caught, record, new, tuple(unclean))
