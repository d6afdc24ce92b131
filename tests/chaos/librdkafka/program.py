"""What programs of librdkafka in a run have in common: a diary, an end at SIGTERM, and a watch.

Calls of librdkafka hold the thread that they run in, some without end (docs/kafka.md). So SIGTERM wakes another
thread, and that thread begins the program again when it has stood still for too long, as docs/kafka.md advises.
"""

from __future__ import annotations

import faulthandler
import os
import random
import select
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from tests.chaos.member import JOINS, Diary

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

STILL_TICKS_MAX = 30
"""Seconds; those in which the process was paused do not count."""
SOCKET_TIMEOUT_MS = 5_000
"""At most that of transactions."""
SESSION_MS = 6_000
RESTARTS = "restarts"


class Program(ABC):
    """A process with a place in the run. `target`: bootstrap servers. `role`: what it does there. `random` is another
    one in each life.
    """

    def __init__(self, target: str, role: str, name: str, seed: str, diary: str) -> None:
        self.role, self.name = role, name
        self.seed = int(seed)
        self.random = random.Random(f"{name} {seed} {time.monotonic_ns()}")
        self.diary = Diary(diary)
        self.stopped = threading.Event()
        self.settings: dict[str, Any] = {"bootstrap.servers": target, "socket.timeout.ms": SOCKET_TIMEOUT_MS}
        self._still_ticks = 0

    def run(self) -> None:
        """Until SIGTERM."""
        faulthandler.enable()
        wakes, woken = socket.socketpair()
        woken.setblocking(False)
        signal.set_wakeup_fd(woken.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)  # a thread that is in librdkafka would not run it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        threading.Thread(target=self._watch, args=(wakes, woken), daemon=True).start()
        print(JOINS, flush=True)
        while not self.stopped.is_set():
            self.turn()
            self.session()

    @abstractmethod
    def session(self) -> None:
        """Do the work with new clients for a while, as a program that is started again."""

    def turn(self) -> None:
        """Note that the program does not stand still."""
        self._still_ticks = 0

    def rest(self, seconds: float) -> None:
        """Wait, until SIGTERM at most."""
        self.stopped.wait(seconds)
        self.turn()

    def told(self, error: KafkaError) -> None:
        self.diary.write(f"told {error.name()} {error.str()[:200]}".replace("\n", " "))

    def over_s(self) -> float:
        """Return when a session ends, monotonic."""
        return time.monotonic() + self.random.choice((5.0, 30.0, 1000.0))

    def goes_on(self, over_s: float) -> bool:
        return not self.stopped.is_set() and time.monotonic() < over_s

    def _watch(self, wakes: socket.socket, _: socket.socket) -> None:
        while True:
            if select.select([wakes], [], [], 1.0)[0] and wakes.recv(1):
                self.stopped.set()
            self._still_ticks += 1
            if self._still_ticks > STILL_TICKS_MAX:
                self.diary.write(RESTARTS)
                if self.stopped.is_set():
                    os._exit(0)
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the next life can take it
                os.execv(sys.executable, sys.orig_argv)
