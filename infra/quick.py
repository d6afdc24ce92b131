"""Run the unit and property tests of what has changed, for at most two minutes (`make quick`).

    python -m infra.quick            what differs from main, uncommitted and new files included
    BASE=HEAD~3 python -m infra.quick            what differs from another commit

A test belongs to what it imports, itself or through other modules of `tests/`. First come tests that have changed,
whatever folder of `tests/` they are in, and those that import a changed module, then those that import another module
of the same package (its folder); of both, unit tests come before property tests, which take longer. Where no unit or
property test imports what has changed (the gateway has its own folder), the tests elsewhere that do come last. A file
that is no module (a page, pyproject.toml) belongs to tests that name it. What has no turn within the time is skipped,
and the summary says how many tests that were: `make test-fast` runs all.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

CLONE = Path(__file__).resolve().parent.parent
TESTS = ("tests/unit", "tests/property")
SOURCES = ("ledger/", "offsets/", "stateless_broker/", "spark/")
"""Folders that lie around a package."""
BASES = ("origin/main", "main")
SECONDS = 100
"""No test begins later; the last ones may end a few seconds after that."""
DEADLINE = "LEDGERMQ_QUICK_UNTIL"
SIDE_BY_SIDE = ("-n", "2", "--maxschedchunk", "4")
TIERS = "not slow and not spark and not real and not compose and not console and not languages and not librdkafka"


@dataclass(frozen=True, slots=True)
class Needs:
    """What a test module needs: modules (`from a import b` may mean a.b or a name in a), and strings in it."""

    modules: frozenset[str]
    strings: frozenset[str]


class TestModules(Mapping[str, Needs]):
    """What each module of `tests/` needs by itself, by its path from the clone; read when it is asked for."""

    __test__ = False  # for pytest

    def __init__(self, clone: Path) -> None:
        self._clone = clone
        self._paths = [path.relative_to(clone).as_posix() for path in sorted((clone / "tests").rglob("*.py"))]
        self._read: dict[str, Needs] = {}

    def __getitem__(self, path: str) -> Needs:
        if path not in self._read:
            self._read[path] = needs_of((self._clone / path).read_text(encoding="utf-8"))
        return self._read[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)


def module_of(path: str) -> str:
    """Return the name by which a file is imported."""
    for source in SOURCES:
        path = path.removeprefix(source)
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def needs_of(text: str) -> Needs:
    modules, strings = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    return Needs(frozenset(modules), frozenset(strings))


def everything_of(path: str, by_path: Mapping[str, Needs], by_module: Mapping[str, str]) -> Needs:
    """Return what a test module needs, with what it needs through other modules of `tests/`."""
    seen, left = {path}, [path]
    while left:
        for module in by_path[left.pop()].modules:
            other = by_module.get(module)
            if other is not None and other not in seen:
                seen.add(other)
                left.append(other)
    modules = frozenset(module for each in seen for module in (*by_path[each].modules, module_of(each)))
    return Needs(modules, frozenset(string for each in seen for string in by_path[each].strings))


def chosen(changed: Iterable[str], by_path: Mapping[str, Needs]) -> list[str]:
    """Return the test modules that concern the changed files, the nearest first.

    Args:
        changed: paths from the clone.
        by_path: what each module of `tests/` needs by itself, by its path from the clone.
    """
    changed = set(changed)
    modules = {module_of(path) for path in changed if path.endswith(".py")}
    packages = {
        module_of(f"{PurePosixPath(path).parent}/__init__.py")
        for path in changed
        if path.endswith(".py") and not path.startswith("tests/")
    }
    others = {PurePosixPath(path).name for path in changed if not path.endswith(".py")}
    is_for_all = any(PurePosixPath(path).name == "conftest.py" for path in changed)
    by_module = {module_of(path): path for path in by_path}
    near, far, elsewhere = [], [], []
    for path in sorted(by_path, key=lambda path: (not path.startswith(TESTS[0]), path)):
        if not PurePosixPath(path).name.startswith("test_"):
            continue
        needs = everything_of(path, by_path, by_module)
        names = {PurePosixPath(string).name for string in needs.strings if "\n" not in string}
        is_near = needs.modules & modules or names & others
        is_quick = path.startswith(TESTS)
        if path in changed or (is_quick and is_near):
            near.append(path)
        elif is_near:
            elsewhere.append(path)
        elif is_quick and (
            is_for_all or any(module in packages or module.rpartition(".")[0] in packages for module in needs.modules)
        ):
            far.append(path)
    return near + far + ([] if near else elsewhere)


def changed_since(base: str) -> list[str]:
    """Return the paths that differ from the commit from which this branch and `base` have gone apart."""
    start = _git("merge-base", base, "HEAD").strip()
    return sorted(
        {*_git("diff", "--name-only", start).splitlines(), *_git("ls-files", "-o", "--exclude-standard").splitlines()}
    )


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CLONE, capture_output=True, text=True, check=True).stdout


def _base() -> str:
    """Return what to compare with: BASE, or the first of BASES that there is."""
    if named := os.environ.get("BASE"):
        return named
    refs = _git("for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes").split()
    return next((base for base in BASES if base in refs), "HEAD")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """pytest's hook: this module is a plugin of the run that it starts."""
    if time.time() > float(os.environ[DEADLINE]):
        pytest.skip("the time of make quick is over: make test-fast runs it")


def main(options: Sequence[str]) -> int:
    until = time.time() + SECONDS
    base = _base()
    changed = changed_since(base)
    if not changed:
        print(f"nothing differs from {base}: nothing to test")
        return 0
    tests = chosen(changed, TestModules(CLONE))
    if not tests:
        print(f"no test concerns what differs from {base}: {' '.join(changed)}")
        return 0
    print(f"{len(changed)} files differ from {base}: {len(tests)} test modules, for at most two minutes")
    env = {**os.environ, DEADLINE: str(until)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "infra.quick",
        "-m",
        TIERS,
        "-n",
        "2",
        "--maxschedchunk",
        "4",
    ]
    return subprocess.run([*command, *options, *tests], cwd=CLONE, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
