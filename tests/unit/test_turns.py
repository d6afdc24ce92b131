"""Turns of the long tiers in CI: each comes, in every clone the same, and the summary says when."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from infra.turns import SLOW_PARTS, TIERS, last_turn, slow_part, summary, turn_of
from tests.parts import part_of

ROOT = Path(__file__).resolve().parents[2]
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
SECONDS_MAX = 4500
"""A run of CI, the turn included, stays under 75 minutes."""


def test_each_tier_has_its_turn_once_in_as_many_commits_as_there_are_tiers() -> None:
    for first in (1, 1843):
        turns = [turn_of(number).name for number in range(first, first + len(TIERS))]
        assert sorted(turns) == sorted(tier.name for tier in TIERS)


def test_commits_that_follow_each_other_run_every_slow_test() -> None:
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    taken: list[str] = []
    for number in range(7, 7 + SLOW_PARTS):
        part, parts = map(int, slow_part(number).split("/"))
        taken += [file for file in files if part_of(file, parts) == part]
    assert sorted(taken) == files
    assert len(files) / 3 < len([file for file in files if part_of(file, SLOW_PARTS) == 1]) < len(files) * 2 / 3


def collected(part: str) -> subprocess.CompletedProcess[str]:
    files = [f"tests/unit/test_{name}.py" for name in ("second_look", "turns", "sizes", "decisions")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--part", part, *files]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def test_the_suite_runs_the_tests_of_one_part() -> None:
    ran = [{line for line in collected(part).stdout.splitlines() if "::" in line} for part in ("1/1", "1/2", "2/2")]
    whole, *parts = ran
    assert all(parts)
    assert parts[0] | parts[1] == whole
    assert not parts[0] & parts[1]
    assert {part_of(test.partition("::")[0], 2) for test in parts[1]} == {2}


def test_a_part_that_there_is_not_is_refused() -> None:
    assert "--part 3/2: write it as 1/2" in collected("3/2").stderr


@pytest.mark.parametrize("number", [1, 5, 9, 10, 1843])
def test_the_last_turn_is_the_newest_commit_that_has_it(number: int) -> None:
    for tier in TIERS:
        turns = [each for each in range(1, number + 1) if turn_of(each) is tier]
        assert last_turn(tier, number) == (turns[-1] if turns else None)


def test_the_summary_names_the_commit_of_each_last_turn() -> None:
    newest = len(TIERS)
    commits = [f"{number:08x}cafe" for number in range(newest, 0, -1)]
    lines = summary(newest, commits, turn_of(newest))
    assert len(lines) == len(TIERS)
    for tier, line in zip(TIERS, lines, strict=True):
        last = last_turn(tier, newest)
        assert last is not None
        assert line.split() == ["turn", tier.name, "last", "at", "commit", str(last), f"({last:08x})"]
    assert "none yet" in summary(1, commits[-1:], turn_of(1))[0]


def test_a_tier_that_is_named_has_the_turn_of_this_commit() -> None:
    commits = [f"{number:08x}" for number in range(11, 0, -1)]
    soak = next(tier for tier in TIERS if tier.name == "soak")
    assert turn_of(11) is not soak
    [line] = [line for line in summary(11, commits, soak) if " soak " in line]
    assert line.endswith("last at commit 11 (0000000b)")


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def turns(folder: Path, what: str, turn: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infra.turns", what],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin:/usr/local/bin", "CI_TURN": turn},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_fresh_clone_decides_as_the_repository_does_and_a_shallow_one_says_why_it_cannot(tmp_path: Path) -> None:
    origin, clone, shallow = (tmp_path / name for name in ("origin", "clone", "shallow"))
    origin.mkdir()
    git(origin, "init", "-q")
    for number in range(3):
        git(origin, "commit", "-q", "--allow-empty", "-m", f"commit {number}")
    git(tmp_path, "clone", "-q", str(origin), str(clone))
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{origin}", str(shallow))
    tier = turn_of(3)
    for folder in (origin, clone):
        assert turns(folder, "next").stdout == f"{tier.seconds_min}\t{tier.command}\n"
        assert f"{tier.name:18} last at commit 3 (" in turns(folder, "summary").stdout
    assert turns(clone, "next", "soak").stdout.endswith("make soak SECONDS=600\n")
    refused, unknown = turns(shallow, "next"), turns(clone, "next", "siesta")
    assert refused.returncode != 0
    assert "this clone is shallow" in refused.stderr
    assert unknown.returncode != 0
    assert "CI_TURN=siesta is no tier; there are compose, chaos," in unknown.stderr


def test_ci_takes_turns_within_its_time() -> None:
    assert "-m infra.turns next" in CI
    assert "-m infra.turns summary" in CI
    [most] = re.findall(r"^turn_ends_seconds=(\d+)", CI, re.MULTILINE)
    assert int(most) <= SECONDS_MAX
    assert all(tier.seconds_min <= SECONDS_MAX - 2870 for tier in TIERS), "a run takes 2,870 s before the turn"


def test_commands_of_tiers_are_targets_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for tier in TIERS:
        make, target, *variables = tier.command.split()
        assert make == "make"
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
        assert all(
            f"$({name.partition('=')[0]})" in makefile
            or f"$(if $({name.partition('=')[0]})" in makefile
            or f"$(or $({name.partition('=')[0]})" in makefile
            for name in variables
        )
        assert all((ROOT / name.partition("=")[2]).exists() for name in variables if name.startswith("TESTS="))
