"""Why connections of Kafka clients end is logged, a bounded number of lines a second."""

import asyncio
from typing import Any

import pytest

from ledgermq_broker.kafka import parts
from tests.virtual_time import run_virtual


class Lines:
    """A log that keeps what it gets."""

    def __init__(self) -> None:
        self.info_lines: list[dict[str, Any]] = []
        self.warnings: list[dict[str, Any]] = []

    def info(self, what: str, **fields: Any) -> None:
        self.info_lines.append(fields)

    def warning(self, what: str, **fields: Any) -> None:
        self.warnings.append(fields)


def test_lines_are_bounded_and_the_next_one_counts_those_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    monkeypatch.setattr(parts, "log", lines)

    async def life() -> None:
        noted = parts.Endings()
        for _ in range(parts.LINES_AT_ONCE + 5):
            noted.note("Kafka connection ended", peer="1.2.3.4", why="a frame of 2 GB")
        assert len(lines.info_lines) == noted.lines == parts.LINES_AT_ONCE
        await asyncio.sleep(1 / parts.LINES_PER_S + 0.01)
        for _ in range(2):
            noted.note("Kafka connection ended", peer="1.2.3.4", why="silence", is_warning=True)
        assert lines.warnings == [{"peer": "1.2.3.4", "why": "silence", "left_out": 5}]
        assert lines.info_lines[0] == {"peer": "1.2.3.4", "why": "a frame of 2 GB"}

    run_virtual(life)
