"""The brokers that LedgerMQ is held against: which there are, what their acknowledgements mean, and
all of them running at once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from bench.peers import confluent, kafka, nats, rabbitmq, redis, rocketmq, s2
from bench.peers.peer import PacedPeer, Peer

DURABILITY = {
    kafka.SUBJECT: kafka.DURABILITY,
    confluent.SUBJECT: kafka.DURABILITY,
    redis.SUBJECT: redis.DURABILITY,
    nats.SUBJECT: nats.DURABILITY,
    nats.SUBJECT_BY_DEFAULT: nats.DURABILITY_BY_DEFAULT,
    rabbitmq.SUBJECT: rabbitmq.DURABILITY,
    rocketmq.SUBJECT: rocketmq.DURABILITY,
    s2.SUBJECT: s2.DURABILITY,
}
"""What an acknowledgement means, by subject."""

LEFT_OUT = {
    "AutoMQ": "its server's jars are not in Maven Central (2026-11-27)",
    "Tansu": "its crate (tansu 0.6.0), which keeps Kafka's topics in a bucket, has not been built (2026-11-27)",
    "Redpanda": "its server is in none of the packages of Debian, npm and PyPI (2026-11-27)",
}
"""Peers that were wanted and are not measured, and why."""

P = TypeVar("P", bound=Peer)
Running = Callable[[Path], AbstractContextManager[P]]


class RunningOnRoot(Protocol):
    def __call__(self, folder: Path, root: str) -> AbstractContextManager[PacedPeer]: ...


OTHERS: dict[str, Running[Peer]] = {
    redis.SUBJECT: redis.running,
    nats.SUBJECT: nats.running,
    nats.SUBJECT_BY_DEFAULT: partial(nats.running, sync_always=False),
    rabbitmq.SUBJECT: rabbitmq.running,
    rocketmq.SUBJECT: rocketmq.running,
    s2.SUBJECT: s2.running,
}
DISKLESS: dict[str, RunningOnRoot] = {s2.SUBJECT: s2.running}
"""Those that keep only objects, as LedgerMQ does: they run on a root of any kind."""


def opened(stack: ExitStack, folder: Path, like: str = "") -> tuple[list[Peer], dict[str, str]]:
    """Start peers, Kafka first, until `stack` ends; return those that run, and for each other one
    the reason, which is also printed on stderr.

    `like`: only those whose subject contains this; Kafka's Java tools, which the targets are about,
    run in any case.
    """
    broker = stack.enter_context(kafka.running(_made(folder, "kafka")))
    wanted = OTHERS | {confluent.SUBJECT: lambda _: confluent.running(broker)}
    unasked = {subject: "it was not asked for" for subject in wanted if like.lower() not in subject.lower()}
    others, failed = started(
        stack, folder, {subject: running for subject, running in wanted.items() if subject not in unasked}
    )
    left_out = LEFT_OUT | unasked | failed
    for subject, why in left_out.items():
        print(f"left out: {subject}: {why}", file=sys.stderr)
    return [broker, *others], left_out


def started(stack: ExitStack, folder: Path, wanted: Mapping[str, Running[P]]) -> tuple[list[P], dict[str, str]]:
    """Start peers; return those that run now, and for each other one the reason.

    Each has its own folder in `folder`.
    """
    peers: list[P] = []
    left_out: dict[str, str] = {}
    for number, (subject, running) in enumerate(wanted.items()):
        try:
            peers.append(stack.enter_context(running(_made(folder, f"peer-{number}"))))
        except (SystemExit, RuntimeError, OSError, subprocess.SubprocessError) as missing:
            left_out[subject] = str(missing)
    return peers, left_out


def _made(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    return made
