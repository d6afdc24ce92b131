"""Bound the CPU of processes, so that they are the bottleneck although others share their cores.

Linux, with the cpu controller of cgroups version 1, and rights to make a group there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000


def can_bound() -> bool:
    return (ROOT / "cpu.cfs_quota_us").exists() and os.access(ROOT, os.W_OK)


@contextmanager
def bounded(pids: Sequence[int], cores: float) -> Iterator[None]:
    """Let each of these processes use so much of a core at most. End them before you leave it."""
    groups = [ROOT / f"ledgermq-bench-{pid}" for pid in pids]
    for pid, group in zip(pids, groups, strict=True):
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * cores)))
        (group / "cgroup.procs").write_text(str(pid))
    yield
    for group in groups:
        group.rmdir()
