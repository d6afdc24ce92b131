"""What the container images install, cut out of requirements.lock: `broker.lock`, and `spark.lock`
with what PySpark needs on top.

Direct requirements come from pyproject.toml, theirs from the notes "via …" of requirements.lock.
`make lock` runs it; a test holds the files to those two.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "infra" / "compose"
BROKER_EXTRAS = ("broker", "s3", "azure", "gcs", "hdfs", "gateway", "otlp")
BLOCK = re.compile(r"^(\S+)==.*\n(?:[ \t].*\n)*", re.MULTILINE)
VIA = re.compile(r" *# via (.*)\n")


def locks() -> dict[Path, str]:
    """Content by file."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    blocks = {
        canonicalize_name(found[1]): found[0] for found in BLOCK.finditer((ROOT / "requirements.lock").read_text())
    }
    wanted = [line for extra in BROKER_EXTRAS for line in extras[extra] if not line.startswith("ledgermq[")]
    broker = _closure(blocks, [*project["dependencies"], *wanted])
    spark = _closure(blocks, extras["spark"]) - broker
    return {FOLDER / "broker.lock": _cut(blocks, broker), FOLDER / "spark.lock": _cut(blocks, spark)}


def _closure(blocks: dict[NormalizedName, str], direct: Iterable[str]) -> set[NormalizedName]:
    found = {canonicalize_name(Requirement(line).name) for line in direct}
    while more := {name for name, block in blocks.items() if _parents(block) & found} - found:
        found |= more
    return found


def _parents(block: str) -> set[NormalizedName]:
    via = VIA.search(block)
    return {canonicalize_name(name) for name in via[1].split(", ")} if via else set()


def _cut(blocks: dict[NormalizedName, str], names: Iterable[NormalizedName]) -> str:
    return "# Made by `make lock`.\n" + "".join(VIA.sub("\n", blocks[name]) for name in sorted(names))


if __name__ == "__main__":
    for path, text in locks().items():
        path.write_text(text)
