"""Measure files, functions and folders, and hold them to their bounds.

    python -m infra.sizes             print what is larger than its bound and not recorded; exit 1 if there is any
    python -m infra.sizes --record    write infra/sizes.toml again: after a file was moved, or has become smaller
    python -m infra.sizes --anew      the same, whatever has grown: for branches that were merged; the diff shows it

infra/sizes.toml records what was larger when the bounds came. The record may only shrink: `--record` refuses when a
kind would have more rows, or a larger sum, than before. A moved file takes its row along.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

CLONE = Path(__file__).resolve().parent.parent
RECORD = Path("infra/sizes.toml")
PRODUCT = ("ledger", "ledgermq", "ledgermq_gateway", "ledgermq_tools", "offsets", "spark", "stateless_broker")
ROOMS = (*PRODUCT, "bench", "examples", "infra", "tests")
GENERATED = (
    "*_pb2.py",
    "ledgermq/client/setting_types.py",
    "ledgermq/sync/generated/*.py",
    "kafka/wire/generated/*.py",
)
BOUNDS = {"files": 400, "functions": 60, "folders": 8}
"""Lines of a file; lines of a function from `def` on, its docstring included; modules that lie loose in a folder of the
product, `__init__.py` not counted.
"""

Sizes = Mapping[str, Mapping[str, int]]
"""By kind: what is above its bound, by path from the clone; a function as `path::Class.name`."""


def measure(clone: Path = CLONE) -> Sizes:
    """Return what is larger than its bound."""
    all_sizes: dict[str, Counter[str]] = {kind: Counter() for kind in BOUNDS}
    for path in _modules(clone):
        name = path.relative_to(clone).as_posix()
        text = path.read_text(encoding="utf-8")
        all_sizes["files"][name] = len(text.splitlines())
        for function, lines in _functions(ast.parse(text), ""):
            key = f"{name}::{function}"
            all_sizes["functions"][key] = max(all_sizes["functions"][key], lines)  # overloads share a name
        if name.startswith(tuple(f"{room}/" for room in PRODUCT)) and path.name != "__init__.py":
            all_sizes["folders"][name.rpartition("/")[0]] += 1
    return {
        kind: {name: size for name, size in sorted(sizes.items()) if size > BOUNDS[kind]}
        for kind, sizes in all_sizes.items()
    }


def _modules(clone: Path) -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((clone / room).rglob("*.py")):
            if not any(path.match(pattern) for pattern in GENERATED):
                yield path


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
    """Only statements are visited: no expression holds a `def`, and there are ten times as many."""
    for block in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, block, ()):
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function:
                yield f"{prefix}{child.name}", child.end_lineno - child.lineno + 1
            is_scope = is_function or isinstance(child, ast.ClassDef)
            yield from _functions(child, f"{prefix}{child.name}." if is_scope else prefix)


def recorded(clone: Path = CLONE) -> Sizes:
    """Return what infra/sizes.toml allows."""
    return tomllib.loads((clone / RECORD).read_text(encoding="utf-8"))


def grown(now: Sizes, allowed: Sizes) -> list[str]:
    """Return one line for each that is above its bound and above what is recorded for it."""
    return [
        f"{name} has {size}, at most {allowed[kind].get(name, BOUNDS[kind])} are allowed ({kind})"
        for kind in BOUNDS
        for name, size in now[kind].items()
        if size > allowed[kind].get(name, BOUNDS[kind])
    ]


def needless(now: Sizes, allowed: Sizes) -> list[str]:
    """Return the names of recorded rows that are gone, or within the bound."""
    return [name for kind in BOUNDS for name in allowed[kind] if name not in now[kind]]


def why_not_recorded(now: Sizes, allowed: Sizes) -> list[str]:
    """Return why `now` may not become the record: one line for each kind that would grow."""
    found = []
    for kind in BOUNDS:
        for what, new, old in (
            ("rows", len(now[kind]), len(allowed[kind])),
            ("in all", sum(now[kind].values()), sum(allowed[kind].values())),
        ):
            if new > old:
                found.append(f"{kind}: {new} {what}, recorded are {old}")
    return found


def written(sizes: Sizes) -> str:
    """Return the text of infra/sizes.toml."""
    lines = ["# What is larger than infra/sizes.py allows. May only shrink: python -m infra.sizes --record"]
    for kind in BOUNDS:
        lines += ["", f"[{kind}]", *(f'"{name}" = {size}' for name, size in sizes[kind].items())]
    return "\n".join(lines) + "\n"


def main() -> int:
    now, allowed = measure(), recorded()
    found = grown(now, allowed)
    if sys.argv[1:] in (["--record"], ["--anew"]):
        refusals = why_not_recorded(now, allowed) if sys.argv[1] == "--record" else []
        if not refusals:
            (CLONE / RECORD).write_text(written(now), encoding="utf-8")
            return 0
        found += [f"infra/sizes.toml stays as it is: {refusal}" for refusal in refusals]
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
