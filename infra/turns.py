"""Decide which of the long tiers a run of CI takes besides the usual ones: they take turns by the commit's number.

Tiers that CI never runs rot. All of them together take hours, so each commit runs one. The number is that of the
commit in the history of its branch (first parents), so every clone with its history decides alike.

The slow tests are too many for each run, too: each commit runs those of half of the test files, the next one the
others.

python -m infra.turns next      the turn of this commit: least seconds, a tab, the command
python -m infra.turns part      the part of the slow tests of this commit: 1/2 or 2/2
python -m infra.turns summary   one line for each tier: the commit at which it had its turn last

CI_TURN names a tier that is to have its turn in place of the one by number.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tier:
    """`seconds_min`: time that it may need on two cores; with less left it is not begun."""

    name: str
    command: str
    seconds_min: int


TIERS = (
    Tier("compose", "make compose-test", 1500),
    Tier("chaos", "make chaos STORE=all EVENTS=60 SECONDS=240", 1200),
    Tier("nightly-sinks", "make test-nightly TESTS=tests/real/test_sink_on_servers.py", 1500),
    Tier("soak", "make soak SECONDS=600", 1200),
    Tier("nightly-compaction", "make test-nightly TESTS=tests/real/test_spark_cluster.py", 1200),
    Tier("bench", "make bench-quick", 900),
    Tier("nightly-streams", "make test-nightly TESTS=tests/real/test_stream_kills.py", 1500),
    Tier("mutants", "make mutants", 1500),
    Tier("pythons", "make test-pythons", 900),
    Tier("release", "make release-check", 600),
    Tier("nightly-peers", "make test-nightly TESTS=tests/real/test_peers.py", 1500),
    Tier("console", "make test-console", 600),
    Tier("languages", "make test-languages", 1500),
    Tier("librdkafka", "make test-librdkafka", 1600),
)


SLOW_PARTS = 2


def slow_part(number: int) -> str:
    """Return the part of the slow tests that the commit `number` runs, as `make test-slow PART=` takes it."""
    return f"{number % SLOW_PARTS + 1}/{SLOW_PARTS}"


def turn_of(number: int) -> Tier:
    """Return the tier whose turn it is at the commit `number`, counted from 1."""
    return TIERS[number % len(TIERS)]


def last_turn(tier: Tier, number: int) -> int | None:
    """Return the number of the newest commit up to `number` at which the tier had its turn; None: there is none."""
    found = number - (number - TIERS.index(tier)) % len(TIERS)
    return found if found > 0 else None


def summary(number: int, commits: Sequence[str], chosen: Tier) -> list[str]:
    """Return a line for each tier. `commits`: the newest first, so `commits[0]` is the commit `number`."""
    lines = []
    for tier in TIERS:
        last = number if tier is chosen else last_turn(tier, number)
        if last is None or number - last >= len(commits):
            lines.append(f"turn     {tier.name:18} none yet")
        else:
            lines.append(f"turn     {tier.name:18} last at commit {last} ({commits[number - last][:8]})")
    return lines


def named(name: str, number: int) -> Tier:
    """Return the tier that is named, or has its turn. Raises SystemExit for an unknown name."""
    if not name:
        return turn_of(number)
    found = [tier for tier in TIERS if tier.name == name]
    if not found:
        sys.exit(f"CI_TURN={name} is no tier; there are {', '.join(tier.name for tier in TIERS)}.")
    return found[0]


def history() -> list[str]:
    """Return the commits of this branch, the newest first. Raises SystemExit where git does not have them."""
    if _git("rev-parse", "--is-shallow-repository") == "true":
        sys.exit("this clone is shallow, so the commit has no number; fetch its history (git fetch --unshallow)")
    return _git("rev-list", "--first-parent", "HEAD").split()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(['git', *arguments])} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def main(what: str) -> None:
    commits = history()
    number = len(commits)
    if what == "part":
        print(slow_part(number))
        return
    chosen = named(os.environ.get("CI_TURN", ""), number)
    if what == "summary":
        print("\n".join(summary(number, commits, chosen)))
    else:
        print(f"{chosen.seconds_min}\t{chosen.command}")


if __name__ == "__main__":
    main(sys.argv[1])
