"""The names of the objects in `_delta_log`, and which of them a reader needs. Pure.

    <version:020d>.json                     a commit
    <version:020d>.checkpoint.parquet       a log checkpoint: all of the table at that version
    _last_checkpoint                        a hint for readers; it may be old, or missing

Old versions below a log checkpoint are deleted, so a number there can become free, and a commit that
was sent long ago may land in it: readers pass over it, and so does `choose`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ledgermq.errors import DataDamaged

FOLDER = "_delta_log/"
LAST_CHECKPOINT = "_last_checkpoint"
DATE_CUT_MS = 1000
"""By how much the date of an object may be earlier than its put: S3 cuts it to whole seconds."""
_COMMIT = re.compile(r"(\d{20})\.json\Z", re.ASCII)
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet\Z", re.ASCII)
_IN_A_LOG = re.compile(
    r"(?:parquet/topic=[^/]+|keyed/_\d+)/_delta_log/(?:\d{20}\.json|\d{20}\.checkpoint\.parquet|_last_checkpoint)\Z",
    re.ASCII,
)
_KEYED_LOG = re.compile(r"keyed/_(\d+)/_delta_log/", re.ASCII)
_VERSION = re.compile(r"(\d{20})\.(?:json|checkpoint\.parquet)\Z", re.ASCII)


def commit_name(version: int) -> str:
    return f"{version:020d}.json"


def checkpoint_name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def is_in_a_log(key: str) -> bool:
    """Return whether a key is that of an object in the log of some topic's table, which is no Parquet file of it."""
    return _IN_A_LOG.match(key) is not None


def keyed_topic_of(key: str) -> int | None:
    """Return the id of the keyed topic in the log of whose table an object is; None: it is in no such log."""
    found = _KEYED_LOG.match(key) if is_in_a_log(key) else None
    return None if found is None else int(found[1])


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


def lowest_held(commits: Mapping[int, int], newest: int, now_ms: int, keep_ms: int) -> int:
    """Return the lowest version that a reader may have open: the newest, or one whose next version is younger than
    `keep_ms`. `commits`: when each was stored, by the store's clock, as `now_ms` is; S3 cuts it to whole seconds.
    """
    held = newest
    while held - 1 in commits and now_ms - commits[held] < keep_ms + DATE_CUT_MS:
        held -= 1
    return held


def _lowest_held(stored: Mapping[str, int], needed: Needed, now_ms: int, keep_ms: int) -> int:
    versions = {int(found[1]): name for name in stored if (found := _COMMIT.match(name))}
    above = {version: stored[versions[version]] for version in needed.commits}
    below = needed.checkpoint
    while below is not None and below in versions:
        above[below] = stored[versions[below]]
        below -= 1
    return lowest_held(above, needed.newest, now_ms, keep_ms)


def held(stored: Mapping[str, int], folder: str, now_ms: int, keep_ms: int) -> Needed:
    """Return what has to be read for the lowest version that a reader may have open (`lowest_held`). `stored`: when
    each name of a log was stored, by the store's clock. Raises what `choose` raises.
    """
    lowest = _lowest_held(stored, choose(stored, folder), now_ms, keep_ms)
    names = (name for name in stored if (found := _VERSION.match(name)) and int(found[1]) <= lowest)
    return choose(names, folder)


def removable(stored: Mapping[str, int], folder: str, now_ms: int, keep_ms: int) -> list[str]:
    """Return the names that no held version needs, in the order in which they have to go: ascending, so a number is
    free only when all below it are. `stored`: when each name of a log was stored, by the store's clock.

    The newest log checkpoint that is not above the held versions stays, and so does the commit of its version.
    Raises what `choose` raises.
    """
    versions = {int(found[1]): name for name in stored if (found := _COMMIT.match(name))}
    checkpoints = {int(found[1]): name for name in stored if (found := _CHECKPOINT.match(name))}
    lowest = _lowest_held(stored, choose(stored, folder), now_ms, keep_ms)
    base = max((version for version in checkpoints if version <= lowest), default=0)
    gone = [*versions.items(), *checkpoints.items()]
    return [name for version, name in sorted(gone) if version < base]
