"""How long groups take to decide: `python -m bench.groups [--members 500] [--partitions 5000]
[--topics 10]`.

CPU time of the coordinator alone (no log, no network): a storm of joins until everybody holds its
share, heartbeats that change nothing, a member that leaves, a new coordinator that replays the log,
commits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ledgermq.protocol import ledgermq_pb2 as pb
from tests.worlds.coordinators import Catalog, Consumer, Desk, replayed


def watch(desk: Desk) -> list[float]:
    costs: list[float] = []

    def timed(call: Callable[..., object]) -> Callable[..., object]:
        def measured(*arguments: object) -> object:
            begun = time.process_time()
            try:
                return call(*arguments)
            finally:
                costs.append(time.process_time() - begun)

        return measured

    for name in ("heartbeat", "tick", "commit"):
        setattr(desk.coordinator, name, timed(getattr(desk.coordinator, name)))
    return costs


@contextmanager
def timed(what: str, desk: Desk, costs: list[float]) -> Iterator[None]:
    costs.clear()
    batches, begun_s = len(desk.batches), desk.now_s
    yield
    written = sum(
        len(r.key) + len(r.value or b"") for records in desk.batches[batches:] for record in [records] for r in record
    )
    print(
        f"{what:44} {len(costs):7} calls, {sum(costs):8.3f} s CPU, mean {1e6 * sum(costs) / max(1, len(costs)):9.1f}"
        f" µs, longest {1e3 * max(costs, default=0.0):8.2f} ms; {desk.now_s - begun_s:6.2f} s of protocol time,"
        f" {len(desk.batches) - batches} batches, {written / 1024:.0f} KiB"
    )


def until_stable(desk: Desk, consumers: Iterable[Consumer]) -> int:
    """Exchange heartbeats as a broker does: only members for which something changed get an answer,
    and only these send again.
    """
    rounds = 0
    while desk.coordinator.describe("g", desk.now_s).state != pb.STABLE:
        rounds += 1
        desk.wait(0.05)
        for consumer in consumers:
            if desk.coordinator.changed_for("g", consumer.member_id, consumer.seen_epoch):
                consumer.beat()
                consumer.beat()
    return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=500)
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--topics", type=int, default=10)
    parser.add_argument("--assignor", default="uniform")
    options = parser.parse_args()
    catalog = Catalog()
    for number in range(options.topics):
        catalog.create(f"t{number}", options.partitions // options.topics)
    desk = Desk(catalog)
    costs = watch(desk)
    consumers = [
        Consumer(desk, "g", f"m{n:04}", topics=list(catalog.topics), assignor=options.assignor)
        for n in range(options.members)
    ]
    with timed("everybody joins within a second", desk, costs):
        for consumer in consumers:
            consumer.join()
            desk.wait(1 / options.members)
    with timed("until each holds its share", desk, costs):
        until_stable(desk, consumers)
    with timed("a heartbeat each, nothing changes", desk, costs):
        for consumer in consumers:
            consumer.beat()
    gone = consumers.pop()
    with timed("one leaves, until each holds its share", desk, costs):
        gone.leave()
        until_stable(desk, consumers)
    with timed("one joins, until each holds its share", desk, costs):
        gone.join()
        consumers.append(gone)
        until_stable(desk, consumers)
    with timed("each commits all of its partitions", desk, costs):
        for consumer in consumers:
            consumer.commit(dict.fromkeys(consumer.owned, 1))
    begun = time.process_time()
    again = replayed(desk.batches, desk.limits, catalog)
    seconds = time.process_time() - begun
    records, cleaned = sum(map(len, desk.batches)), len(again.state.snapshot())
    print(f"replay of the {records} records of all this: {seconds:.3f} s CPU; a cleaned log has {cleaned}")


if __name__ == "__main__":
    main()
