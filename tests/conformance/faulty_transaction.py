"""The transaction of plain_transaction.py with one planted fault: FAULT transaction ADDRESS …"""

from __future__ import annotations

import sys
from contextlib import suppress

from google.protobuf.message import Message

from examples.protocol.minimal_client import M, Refused
from tests.conformance.plain_transaction import Transaction, main


class CommitsAnyway(Transaction):
    """It commits what is to be aborted."""

    def end(self, outcome: str) -> None:
        super().end("commit")


class CountsNothing(Transaction):
    """It commits without the counts of one partition."""

    def end(self, outcome: str) -> None:
        self._staged.popitem()
        super().end(outcome)


class BeginsAtOne(Transaction):
    """Its sequences begin at 1."""

    def stage(self, partition: int, values: list[bytes]) -> None:
        self._sequences[partition] = self._sequences[partition] or 1
        super().stage(partition, values)


class NewBytes(Transaction):
    """It repeats each batch with other bytes."""

    def stage(self, partition: int, values: list[bytes]) -> None:
        super().stage(partition, values)
        self._sequences[partition] -= 1
        super().stage(partition, [b"other"])


class GuessesItsEpoch(Transaction):
    """It stages under the next epoch."""

    def stage(self, partition: int, values: list[bytes]) -> None:
        self._ref.epoch = 2
        super().stage(partition, values)


class StartsAfresh(Transaction):
    """Once it is fenced, it begins the next epoch, and stages and commits again."""

    def stage(self, partition: int, values: list[bytes]) -> None:
        self._all = [*getattr(self, "_all", []), (partition, values)]
        with suppress(Refused):
            super().stage(partition, values)

    def end(self, outcome: str) -> None:
        try:
            super().end(outcome)
        except Refused:
            again = Transaction(self._client, self._ref.transactional_id, self._topic)
            for partition, values in self._all:
                again.stage(partition, values)
            again.end(outcome)


class DecidesOnce(Transaction):
    """It does not repeat a decision without an answer."""

    def end(self, outcome: str) -> None:
        self._client.retry = self._once  # type: ignore[method-assign, assignment]
        super().end(outcome)

    def _once(self, topic: str, partition: int, method: str, request: Message, answers: type[M]) -> M:
        address = self._client._owners.get((topic, partition), self._client._first)
        return self._client._call(address, method, request, answers)


if __name__ == "__main__":
    kinds = {kind.__name__: kind for kind in Transaction.__subclasses__()}
    main(*sys.argv[2:], kind=kinds[sys.argv[1]])
