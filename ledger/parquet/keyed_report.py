"""What cleaning tells when it has published a version.

A plain value for people, metrics and JSON.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """A published version. `read`: records looked at.

    `dirty_bytes`: of what was cleaned of the log; `stored_bytes`: of the files.
    """

    bundle: int
    topic: str
    partition: int
    number: int
    end: int
    read: int
    records: int
    dirty_bytes: int
    stored_bytes: int
