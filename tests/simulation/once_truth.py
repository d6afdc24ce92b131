"""What programs were told that repeat a transaction of one call, and the judgment of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.judges.violation import Violation
from tests.simulation.transactions_truth import Sent


@dataclass
class Attempt:
    """One call. `contents`: 0 of the work itself, 1 of another program. `repeated`: it was told so; `reused`: it was
    refused because of other contents.
    """

    work: str
    contents: int
    sent: Sent
    repeated: bool = False
    reused: bool = False


@dataclass
class Attempts:
    all: list[Attempt] = field(default_factory=list)

    def judge(self, visible: Mapping[str, object]) -> Iterator[Violation]:
        """`visible`: by value. Whether each attempt is whole is judged with the other transactions."""
        committed: dict[str, list[Attempt]] = {}
        for attempt in self.all:
            if any(value in visible for value in attempt.sent.values):
                committed.setdefault(attempt.work, []).append(attempt)
        for work, found in committed.items():
            if len(found) > 1:
                yield Violation("committed twice", f"{work}: {[attempt.sent.values for attempt in found]}")
        for attempt in self.all:
            contents = {each.contents for each in committed.get(attempt.work, ())}
            if attempt.repeated and not contents:
                yield Violation("repetition of nothing", f"{attempt.work}: {attempt.sent.client} was told so")
            elif attempt.repeated and contents != {attempt.contents}:
                yield Violation("repetition of another", f"{attempt.work}: contents {contents}, not {attempt.contents}")
            elif attempt.reused and contents <= {attempt.contents}:
                yield Violation("repetition refused", f"{attempt.work}: contents {attempt.contents} are its own")
