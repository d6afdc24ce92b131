"""A small file earns its name by two importers, a contract, or its own test; otherwise it is a
section of the one file that imports it.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
HOMES = {
    "ledgermq": ROOT,
    "ledgermq_ledger": ROOT / "ledger",
    "ledgermq_offsets": ROOT / "offsets",
    "ledgermq_broker": ROOT / "stateless_broker",
    "ledgermq_spark": ROOT / "spark",
    "ledgermq_gateway": ROOT,
    "ledgermq_tools": ROOT,
}
"""The folder that holds each package."""
SMALL_LINES = 60

ALLOWED = {
    "ledgermq_offsets.assignors.consistent_hash": "one of four assignors behind one contract, each a file",
    "ledgermq_offsets.assignors.ranges": "one of four assignors behind one contract, each a file",
    "ledgermq_tools.broker.http": "its importer, commands, runs without the extra gateway",
}
"""Small modules with one importer and no test that imports them, each with the reason why it is a
file nevertheless.
"""


def _imported_by_tests() -> set[str]:
    """Return the names that test modules import: modules, and what is imported from them."""
    found = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _file_of(module: str) -> Path:
    return HOMES[module.partition(".")[0]] / f"{module.replace('.', '/')}.py"


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *HOMES, exclude_type_checking_imports=False, include_external_packages=True, cache_dir=None
    )


@cache
def _unearned() -> frozenset[str]:
    graph = _graph()
    return frozenset(
        module
        for module in graph.modules - _imported_by_tests()
        if module.partition(".")[0] in HOMES
        and (path := _file_of(module)).exists()  # a package is a folder, and has no such file
        and ".generated." not in module  # its only importer is written by hand
        and len(path.read_text().splitlines()) < SMALL_LINES
        and len(graph.find_modules_that_directly_import(module)) == 1
    )


def test_a_small_module_has_two_importers_or_a_test_or_a_reason() -> None:
    unearned = _unearned() - ALLOWED.keys()
    assert not unearned, f"make each a section of its only importer, or give a reason in ALLOWED: {sorted(unearned)}"


def test_each_reason_is_still_needed() -> None:
    needless = ALLOWED.keys() - _unearned()
    assert not needless, f"take out of ALLOWED what is gone, or has earned its name: {sorted(needless)}"


def test_pure_states_import_nothing_of_the_broker_around_them() -> None:
    """`state` of a feature's room is decided without clock, network or tasks, so that models and
    tools use it alone.
    """
    graph = _graph()
    states = {module for module in graph.modules if module.startswith("ledgermq_broker.") and ".state" in module}
    assert len({module.split(".")[1] for module in states}) == 6
    for module in states:
        imported = graph.find_modules_directly_imported_by(module)
        around = {name for name in imported if name.startswith("ledgermq_broker.")} - states
        assert not around | imported & {"asyncio", "grpc"}, module


def _of_circles(imports: dict[str, set[str]]) -> set[str]:
    """Return the modules that lie on a circle of imports, or between two circles."""
    while True:
        imported = set().union(*imports.values())
        left = {module: found & imports.keys() for module, found in imports.items() if module in imported}
        left = {module: found for module, found in left.items() if found}
        if left == imports:
            return set(imports)
        imports = left


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not for type checkers alone: who reads one module of a circle has to read all of them."""
    graph = _graph()
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert not _of_circles(imports)


def test_a_circle_of_imports_is_found() -> None:
    assert _of_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == {"b", "c"}
    assert _of_circles({"a": {"b", "c"}, "b": {"c"}, "c": {"d"}, "d": set()}) == set()
