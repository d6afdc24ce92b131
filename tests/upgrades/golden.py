"""The golden roots of all released versions, and what has to be found in them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ledgermq.client.messages.record import Record, as_bytes
from tests.upgrades.delayed import Left

ROOTS = Path(__file__).parents[1] / "golden" / "roots"
VERSIONS = sorted((folder.name for folder in ROOTS.iterdir()), key=lambda name: [int(part) for part in name.split(".")])
"""Ascending."""
TIMED = "timed"
"""The topic of delayed messages. What is in it depends on the time."""

Row = tuple[int, str | None, str | None, list[list[str | None]], str | None, int]
"""offset, key, value, headers, tag, timestamp in µs; bytes as Latin-1, so that every byte is one
character.
"""


@dataclass
class Expected:
    """`records`: rows by "topic/partition", of topics that keep all.

    `committed`: next offsets by group and partition of `flights`.
    """

    version: str
    records: dict[str, list[Row]] = field(default_factory=dict)
    committed: dict[str, dict[str, int]] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    latest: dict[str, dict[str, str]] = field(default_factory=dict)
    """Values by key, of each keyed topic."""
    transactions: dict[str, str] = field(default_factory=dict)
    """What is answered about each transaction that was left, by its id."""
    delayed: list[Left] = field(default_factory=list)
    """The delayed messages that were left in the topic `timed`, in no order."""
    written_us: int = 0
    """The time of the store when the root was complete; 0: of a release without delayed messages."""

    def note(self, topic: str, partition: int, offset: int, record: Record) -> None:
        headers = [*(record.headers.items() if isinstance(record.headers, dict) else record.headers or ())]
        assert isinstance(record.timestamp, int)
        row = row_of(offset, _bytes(record.key), _bytes(record.value), headers, record.tag, record.timestamp)
        rows = self.records.setdefault(f"{topic}/{partition}", [])
        assert offset == len(rows)
        rows.append(row)

    def forget(self, topic: str) -> None:
        self.removed.append(topic)
        for name in [name for name in self.records if name.startswith(f"{topic}/")]:
            del self.records[name]

    def save(self, folder: Path) -> None:
        lines = json.dumps(asdict(self), ensure_ascii=True, indent=0).replace("\n]", "]")
        (folder / "expected.json").write_text(lines + "\n")

    @classmethod
    def of(cls, version: str) -> Expected:
        found: dict[str, Any] = json.loads((ROOTS / version / "expected.json").read_text())
        records = {name: [_row(*row) for row in rows] for name, rows in found.pop("records").items()}
        delayed = [Left(**each) for each in found.pop("delayed", ())]
        return cls(records=records, delayed=delayed, **found)


def row_of(
    offset: int, key: bytes | None, value: bytes | None, headers: Any, tag: str | None, timestamp_us: int | None
) -> Row:
    assert timestamp_us is not None
    pairs: list[list[str | None]] = [[name, _text(content)] for name, content in headers or ()]
    return (offset, _text(key), _text(value), pairs, tag, timestamp_us)


def copy_root(version: str, folder: Path) -> Path:
    """A copy to work on."""
    return Path(shutil.copytree(ROOTS / version / "root", folder / "root"))


def contents(folder: Path) -> dict[str, bytes]:
    """Every object of a root."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _row(
    offset: int, key: str | None, value: str | None, headers: list[list[str | None]], tag: str | None, timestamp_us: int
) -> Row:
    return (offset, key, value, headers, tag, timestamp_us)


def _bytes(given: Any) -> bytes | None:
    return as_bytes("value", given)


def _text(data: Any) -> str | None:
    found = as_bytes("value", data)
    return None if found is None else found.decode("latin-1")
