"""Put what producers of other processes did into the history of a run, by the time of each event. All times are of
one clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.simulation.history import Event, History, Outcome


@dataclass(slots=True)
class TimedHistory(History):
    """`moments`: when each event was added, monotonic nanoseconds."""

    moments: list[int] = field(default_factory=list)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.moments.append(time.monotonic_ns())


def add_diaries(history: TimedHistory, sent_ms: dict[str, int], diaries: Iterable[Path]) -> None:
    """`sent_ms`: of each value, by the wall clock; those of the diaries are added.

    A send that failed may still be stored, behind later ones, too: its order is not judged.
    """
    wall_ns = time.time_ns() - time.monotonic_ns()
    for diary in diaries:
        failed = {words[2] for words in _lines(diary) if words[1] == "failed"}
        ops: dict[str, int] = {}
        for words in _lines(diary):
            match words:
                case [at, "sending", client, topic, number, name]:
                    ops[name] = history.begin_produce(client, (topic, int(number)), (name,), ordered=name not in failed)
                    history.moments[-1] = int(at)
                    sent_ms[name] = (int(at) + wall_ns) // 1_000_000
                case [at, "stored", name, offset]:
                    history.end_produce(ops[name], Outcome.OK, int(offset))
                    history.moments[-1] = int(at)
                case [at, "failed", name, code]:
                    history.end_produce(ops[name], Outcome.INFO, why=code)
                    history.moments[-1] = int(at)
    order = sorted(range(len(history.events)), key=history.moments.__getitem__)
    history.events = [history.events[at] for at in order]
    history.moments = [history.moments[at] for at in order]


def told_of(diaries: Iterable[Path]) -> str:
    """Return what the producers did, for the report."""
    words = [words[1] for diary in diaries for words in _lines(diary)]
    return ", ".join(f"{words.count(what)} {what}" for what in ("sending", "stored", "failed"))


def _lines(diary: Path) -> Iterator[list[str]]:
    """Without the line in whose midst the process was killed."""
    for line in diary.read_text().split("\n")[:-1] if diary.exists() else ():
        if len(words := line.split(" ")) > 2:
            yield words
