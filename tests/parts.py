"""Run one part of the chosen tests: `--part 1/2` takes those of half of the files.

CI takes the slow tests in turns (`infra/turns.py`), so each part must be the same in every clone, whatever
else is collected: a file belongs to its part by a checksum of its path.
"""

from __future__ import annotations

import zlib

import pytest


def part_of(path: str, parts: int) -> int:
    """Return the part, counted from 1, to which the test file with this path below the project belongs."""
    return zlib.crc32(path.encode()) % parts + 1


def _parsed(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise pytest.UsageError(f"--part {text}: write it as 1/2, the first of two parts")
    return int(part), int(parts)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="K/N", help="run the tests of one of N parts of the files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = _parsed(config.getoption("--part"))
    chosen: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        chosen[part_of(item.nodeid.partition("::")[0], parts) == part].append(item)
    if chosen[False]:
        config.hook.pytest_deselected(items=chosen[False])
        items[:] = chosen[True]
