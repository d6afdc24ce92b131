"""The names of the objects in `_delta_log`, and which of them a reader needs. Pure.

    <version:020d>.json                     a commit
    <version:020d>.checkpoint.parquet       a log checkpoint: all of the table at that version
    _last_checkpoint                        a hint for readers; it may be old, or missing

Old versions below a log checkpoint are deleted, so a number there can become free, and a commit that
was sent long ago may land in it: readers pass over it, and so does `choose`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ledgermq.errors import DataDamaged

FOLDER = "_delta_log/"
LAST_CHECKPOINT = "_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json\Z", re.ASCII)
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z", re.ASCII)


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


@dataclass(frozen=True, slots=True)
class Needed:
    """`checkpoint`: the version of the newest log checkpoint, None: there is none. `commits`: the
    versions after it, all that there are.
    """

    checkpoint: int | None
    commits: range

    @property
    def newest(self) -> int:
        """The table's newest version; -1: there is no table."""
        return self.commits[-1] if self.commits else -1 if self.checkpoint is None else self.checkpoint


def choose(names: Iterable[str], folder: str) -> Needed:
    """Return what has to be read of a log, by a LIST of its names, relative to `folder`. Names of no commit
    and no log checkpoint are passed over.

    Raises DataDamaged if a version is missing, which no reader could get over.
    """
    commits, checkpoint = set[int](), None
    for name in names:
        if found := _COMMIT.match(name):
            commits.add(int(found[1]))
        elif found := _CHECKPOINT.match(name):
            checkpoint = max(int(found[1]), -1 if checkpoint is None else checkpoint)
    first = 0 if checkpoint is None else checkpoint + 1
    after = sorted(version for version in commits if version >= first)
    newest = after[-1] if after else first - 1
    if len(after) != newest + 1 - first:
        missing = next(version for version in range(first, newest) if version not in commits)
        raise DataDamaged(
            f"{folder}{commit_name(missing)}: it is missing, although the log has version {newest}",
            object_key=folder + commit_name(missing),
        )
    return Needed(checkpoint, range(first, newest + 1))
