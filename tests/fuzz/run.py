"""`python -m tests.fuzz.run --inputs N --seed S`: hostile bytes for every surface, in a child
process, so that a crash is seen as a crash.

    --surface NAME    only this one; may be given several times
    --only NUMBER     replay one input of --surface here, with its traceback

Exit status 1 when an input crashed the child, kept it busy for too long, or raised what no caller
is prepared for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.worker import PROGRESS

HANG_CPU_S = 30.0
HANG_S = 600.0
"""An input that the child is busy with for so much processor time, or does not answer for so long:
the machine may be busy.
"""
START_S = 600.0
NOT_STARTED = b"\xff" * PROGRESS.size
CRASHES_MAX = 50
"""Per surface; the rest of its inputs is then left out."""


@dataclass(frozen=True)
class Failure:
    surface: str
    number: int
    what: str


@dataclass(frozen=True)
class Work:
    surface: str
    first: int
    count: int


def share(inputs: int, weights: dict[str, float]) -> list[Work]:
    total = sum(weights.values())
    return [Work(name, 0, max(1, int(inputs * weight / total))) for name, weight in weights.items()]


def fuzz(works: Sequence[Work], seed: int, hang_s: float = HANG_S) -> list[Failure]:
    """All failures. After a crash a new child goes on with the next input."""
    failures: list[Failure] = []
    left = list(works)
    while left:
        done, number, found, what = _one_child(left, seed, hang_s)
        failures += found
        if what is None or done == len(left):  # all was done: a child that is slow to end has hung at no input
            break
        died = left[done]
        failures.append(Failure(died.surface, number, what))
        rest = Work(died.surface, number + 1, died.first + died.count - number - 1)
        too_many = sum(failure.surface == died.surface for failure in failures) >= CRASHES_MAX
        left = ([rest] if rest.count and not too_many else []) + left[done + 1 :]
    return failures


def describe(failures: Sequence[Failure], seed: int) -> list[str]:
    """Those that failed at the same place together, with the command that replays the first."""
    alike: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((failure.surface, failure.what.partition(": ")[0]), []).append(failure)
    lines = []
    for first, *more in alike.values():
        count = f" ({len(more) + 1} times)" if more else ""
        lines.append(f"{first.surface}: {first.what}{count}")
        lines.append(f"    python -m tests.fuzz.run --surface {first.surface} --seed {seed} --only {first.number}")
    return lines


def _one_child(works: Sequence[Work], seed: int, hang_s: float) -> tuple[int, int, list[Failure], str | None]:
    """(piece of work, number) of the last input, the failures that were told, and how the child
    died; None: it did not.
    """
    with tempfile.TemporaryDirectory(prefix="ledgermq-fuzz-") as folder:
        progress = Path(folder, "progress")
        progress.write_bytes(NOT_STARTED)
        told, complaints = Path(folder, "told"), Path(folder, "complaints")
        arguments = [f"{work.surface}:{work.first}:{work.count}" for work in works]
        with told.open("wb") as out, complaints.open("wb") as err:
            command = [sys.executable, "-m", "tests.fuzz.worker", str(seed), str(progress), *arguments]
            child = subprocess.Popen(command, stdout=out, stderr=err, cwd=Path(__file__).parents[2])
            hung = _wait(child, progress, hang_s)
        if progress.read_bytes() == NOT_STARTED:
            raise RuntimeError(f"the child could not start: {complaints.read_text(errors='replace')}")
        done, number = PROGRESS.unpack(progress.read_bytes())
        found = [Failure(**json.loads(line)) for line in told.read_text().splitlines()]
        if hung:
            return done, number, found, "no answer, or no end of work"
        if child.returncode:
            last = complaints.read_text(errors="replace").strip()[-2000:]
            return done, number, found, f"the process died ({child.returncode}): {last}"
        return done, number, found, None


def _wait(child: subprocess.Popen[bytes], progress: Path, hang_s: float) -> bool:
    """True: it was killed because one input kept it busy, or asleep."""
    seen, since, used_s = NOT_STARTED, time.monotonic(), 0.0
    while True:
        try:
            child.wait(1.0)
            return False
        except subprocess.TimeoutExpired:
            now = progress.read_bytes()
            if now != seen:
                seen, since, used_s = now, time.monotonic(), _cpu_s(child.pid)
                continue
            limit_s = START_S if now == NOT_STARTED else hang_s
            if time.monotonic() - since > limit_s or (now != NOT_STARTED and _cpu_s(child.pid) - used_s > HANG_CPU_S):
                child.kill()
                child.wait()
                return True


def _cpu_s(process: int) -> float:
    """What a process has used of the processor so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--surface", action="append")
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    from tests.fuzz.surfaces import all_surfaces

    surfaces = all_surfaces()
    names = arguments.surface or list(surfaces)
    if unknown := set(names) - set(surfaces):
        parser.error(f"unknown surface {', '.join(unknown)}; there are {', '.join(surfaces)}")
    if arguments.only is not None:
        [surface] = [surfaces[name] for name in names]
        data = surface.input(arguments.seed, arguments.only)
        print(f"{len(data)} bytes: {data[:2000].hex()}", flush=True)
        surface.run(data)
        return 0
    works = share(arguments.inputs, {name: surfaces[name].weight for name in names})
    begun = time.monotonic()
    failures = fuzz(works, arguments.seed)
    for line in describe(failures, arguments.seed):
        print(line)
    seconds = time.monotonic() - begun
    total = sum(work.count for work in works)
    print(
        f"{total:,} inputs on {len(works)} surfaces in {seconds:.0f} s, seed {arguments.seed}: {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
