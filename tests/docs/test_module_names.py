"""ARCHITECTURE.md names modules by their full names, pages name files, and every one exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
HOMES = {
    "ledgermq": ROOT,
    "ledgermq_ledger": ROOT / "ledger",
    "ledgermq_offsets": ROOT / "offsets",
    "ledgermq_broker": ROOT / "stateless_broker",
    "ledgermq_spark": ROOT / "spark",
    "ledgermq_tools": ROOT,
}
NAMES = sorted(set(re.findall(rf"`((?:{'|'.join(HOMES)})(?:\.\w+)+)`", PAGE)))


@pytest.mark.parametrize("name", NAMES)
def test_every_module_that_the_page_names_exists(name: str) -> None:
    path = HOMES[name.partition(".")[0]] / name.replace(".", "/")
    assert path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_the_page_names_every_floor_of_the_ledger() -> None:
    folders = {path.parent.name for path in (ROOT / "ledger" / "ledgermq_ledger").glob("*/__init__.py")}
    assert {f"ledgermq_ledger.{folder}" for folder in folders} <= set(NAMES)


FOLDERS = (
    "bench|docs|examples|infra|ledger|ledgermq|ledgermq_gateway|ledgermq_tools|offsets|spark|stateless_broker|tests"
)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_file_that_a_page_names_exists() -> None:
    named = {
        (page.name, path) for page in PAGES for path in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", page.read_text())
    }
    assert ("bugs-found.md", "tests/unit/runtime/test_tasks.py") in named
    assert not {(page, path) for page, path in named if not (ROOT / path).exists()}
