"""Programs with transactions beside the other producers, until SIGTERM; each is killed and started
again.

python -m tests.soak.transactor write|move TARGET NAME FOLDER

`write`: whole transactions of numbered records to `whole`, of all sizes, with the counters of each
partition in the diary FOLDER/NAME.diary, as `sent TXN whole PARTITION PARTITION/COUNTER+COUNT`.
`move`: a member of a group that copies each record of `kept` to the same partition of `moved`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import ledgermq
from ledgermq.client.groups.message import GroupMessage
from ledgermq.client.transactions.transaction import Transaction
from tests.chaos.member import Diary
from tests.chaos.transaction_judge import attempts
from tests.chaos.transactor import Transactor, until_stopped
from tests.soak.numbered import values

WHOLE, SOURCE, MOVED, MOVERS = "whole", "kept", "moved", "movers"
PARTITIONS = 4
"""Of each of these topics."""
SIZE = 100
BYTES_PER_S = 400_000.0
ROWS = (1, 100, 5000)
PAUSE_S = 0.5


def counters_of(value: str) -> tuple[int, int]:
    """Return the first counter of a line of the diary, and the one behind its last."""
    first, _, count = value.rpartition("/")[2].partition("+")
    return int(first), int(first) + int(count)


class SoakWriter(Transactor):
    timeout_s = 10.0

    def __init__(self, client: ledgermq.Client, name: str, folder: Path) -> None:
        diary = folder / f"{name}.diary"
        self._pause = folder / "pause"
        self._next = dict.fromkeys(range(PARTITIONS), 0)
        for attempt in attempts(diary):
            for value, (_, partition) in attempt.places.items():
                self._next[partition] = max(self._next[partition], counters_of(value)[1])
        super().__init__(client, name, name, 0, Diary(str(diary)))

    async def _fill(self, transaction: Transaction) -> None:
        while self._pause.exists() and not self.stopped.is_set():
            await asyncio.sleep(PAUSE_S)
        for partition in self._random.sample(range(PARTITIONS), self._random.randint(1, PARTITIONS)):
            count = self._random.choice(ROWS)
            counter, self._next[partition] = self._next[partition], self._next[partition] + count
            self._diary.write(f"sent {transaction.name} {WHOLE} {partition} {partition}/{counter}+{count}")
            batch = pa.record_batch([values(partition, counter, count, SIZE)], names=["value"])
            await transaction.send_batch(WHOLE, batch, partition=partition)
            await asyncio.sleep(count * SIZE / BYTES_PER_S)


class Mover(Transactor):
    fetches = (100, 1000, 5000)

    def __init__(self, client: ledgermq.Client, name: str, folder: Path) -> None:
        super().__init__(client, name, name, 0, Diary(str(folder / f"{name}.diary")), MOVERS, SOURCE)

    async def _process_all(self, transaction: Transaction, messages: Sequence[GroupMessage]) -> None:
        for message in messages:
            await transaction.wait_for_room()
            transaction.send(MOVED, message.value, partition=message.partition)


async def main(role: str, target: str, name: str, folder: str) -> None:
    async with ledgermq.connect(target, timeout_s=20) as client:
        await until_stopped((SoakWriter if role == "write" else Mover)(client, name, Path(folder)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
