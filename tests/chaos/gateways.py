"""Gateways of a run and what goes through them: programs that speak HTTP only, each with any gateway that answers.

What each was told is judged at the end: a key has stored its records once, a transaction its own once, a listener has
seen every record that was acknowledged, and each queue message was acknowledged under one lease only.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.chaos.children import LEDGERMQ, Child, Children
from tests.judges.violation import Violation

TOPIC, TOPICS, QUEUE, GROUP = "keyed", ("left", "right"), "jobs", "hands"
PARTITIONS = 2
UP = re.compile(r"gateway listens on")
LEASE_MS = 3_000
GIVES_UP_S = 15.0


class GatewayPlace:
    """A gateway that is started again on its port."""

    def __init__(self, children: Children, number: int, target: str) -> None:
        self.name = f"gateway-{number}"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._children = children
        self._target = target
        self.child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        limits = ("--transactions-per-second-max=1000", "--keys-per-second-max=10000", "--drain-ms=500")
        more = ("--streams-end-ms=500", "--shutdown-ms=5000")
        command = [*LEDGERMQ, "gateway", "--target", self._target, "--port", str(self.port), *limits, *more]
        self.child = self._children.spawn(self.name, command)

    @property
    def is_up(self) -> bool:
        return self.child is not None and self.child.code is None and UP.search(self.child.text()) is not None

    async def end(self, number: signal.Signals) -> None:
        assert self.child is not None
        self.child.signal(number)
        await self.child.ended(60)


@dataclass
class Told:
    """What programs were told. `stored`, `committed`: what got 200. `acked`: by value, the leases under which an
    acknowledgement was told to count; `answered`: values that were acknowledged, whatever was told. `heard`: values
    that each listener saw. `reused`: requests with another body that were refused.
    """

    stored: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    queued: set[str] = field(default_factory=set)
    acked: dict[str, set[str]] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    heard: dict[str, set[str]] = field(default_factory=dict)
    reused: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def report(self, kind: str, text: str) -> None:
        self.violations.append(Violation(kind, text))


class Programs:
    def __init__(self, places: list[GatewayPlace], seed: int) -> None:
        self.told = Told()
        self.stopped = asyncio.Event()
        self._places = places
        self._seed = seed
        self._numbers = Counter[str]()
        self._producing = 0

    async def _call(self, http: httpx.AsyncClient, r: random.Random, method: str, path: str, **more: Any) -> Any:
        """Ask any gateway. Return the answer; None: none came, or it may be repeated."""
        place = r.choice(self._places)
        try:
            found = await http.request(method, place.url + path, **more)
        except httpx.HTTPError as error:
            self.told.statuses[f"{path.split('/')[2]}: {type(error).__name__}"] += 1
            return None
        self.told.statuses[f"{path.split('/')[2]}: {found.status_code}"] += 1
        if found.status_code >= 400:
            problem = found.json()
            is_open = found.status_code >= 500 or problem.get("retriable") or problem["code"] in OPEN
            if not is_open:
                self.told.report("refused", f"{method} {path}: {found.text[:300]}")
            return None
        return found

    async def produce(self, name: str) -> None:
        """Send records under keys, each until it is told that they are stored, by any gateway."""
        self._producing += 1
        await self._produce(name)
        self._producing -= 1

    async def _produce(self, name: str) -> None:
        r = random.Random(f"{name} {self._seed}")
        async with httpx.AsyncClient(timeout=GIVES_UP_S) as http:
            while not self.stopped.is_set():
                self._numbers[name] += 1
                key = f"{name}-{self._numbers[name]}"
                body = {"records": [{"key": key, "value": f"{key}.{at}"} for at in range(r.choice((1, 3)))]}
                headers = {"Idempotency-Key": key}
                while (
                    await self._call(http, r, "POST", f"/v1/topics/{TOPIC}/records", json=body, headers=headers) is None
                ):
                    await asyncio.sleep(r.uniform(0.0, 0.3))
                self.told.stored.update(each["value"] for each in body["records"])
                await asyncio.sleep(r.uniform(0.0, 0.1))

    async def transact(self, name: str) -> None:
        """Commit transactions of one request, each until it is told so."""
        r = random.Random(f"{name} {self._seed}")
        async with httpx.AsyncClient(timeout=GIVES_UP_S) as http:
            while not self.stopped.is_set():
                self._numbers[name] += 1
                key = f"{name}-{self._numbers[name]}"
                records = [{"topic": topic, "value": key} for topic in TOPICS]
                headers = {"Idempotency-Key": key}
                body = {"as": "chaos", "records": records}
                while await self._call(http, r, "POST", "/v1/transactions", json=body, headers=headers) is None:
                    await asyncio.sleep(r.uniform(0.0, 0.3))
                self.told.committed.add(key)
                if r.random() < 0.2:
                    other = {"as": "chaos", "records": records[:1]}
                    answer = await http_status(http, r.choice(self._places).url, other, headers)
                    if answer == 200:
                        self.told.report("another body counted", key)
                    self.told.reused += answer == 422
                await asyncio.sleep(r.uniform(0.0, 0.2))

    async def lease(self, name: str) -> None:
        """Work off the queue: lease at one gateway, answer at any."""
        r = random.Random(f"{name} {self._seed}")
        wanted = {"topics": [QUEUE], "max": 10, "wait_ms": 500, "lease_ms": LEASE_MS, "attempts_max": 60}
        loop = asyncio.get_running_loop()
        quiet_s = loop.time()
        async with httpx.AsyncClient(timeout=GIVES_UP_S) as http:
            while not (self.stopped.is_set() and loop.time() > quiet_s + 3 * LEASE_MS / 1000):
                leased = await self._call(http, r, "POST", f"/v1/queues/{GROUP}/leases", json=wanted)
                messages = [] if leased is None else leased.json()["messages"]
                said = {each["handle"]: each["record"]["value"] for each in messages}
                if messages or leased is None:
                    quiet_s = loop.time()
                words = {handle: "ack" if r.random() < 0.8 else "nack" for handle in said}
                self.told.answered.update(said[handle] for handle, word in words.items() if word == "ack")
                for _ in range(20):
                    answers = {"answers": [{"handle": handle, "word": word} for handle, word in words.items()]}
                    if not words:
                        break
                    found = await self._call(http, r, "POST", f"/v1/queues/{GROUP}/answers", json=answers)
                    if found is not None:
                        for (handle, word), result in zip(words.items(), found.json()["results"], strict=True):
                            if word == "ack" and result.get("counts"):
                                self.told.acked.setdefault(said[handle], set()).add(handle)
                        break
                    await asyncio.sleep(0.2)
                await asyncio.sleep(r.uniform(0.0, 0.1))

    def _is_over(self, heard: set[str]) -> bool:
        """Return whether a listener has heard all that will ever be stored."""
        return self.stopped.is_set() and not self._producing and self.told.stored <= heard

    async def listen(self, name: str) -> None:
        """Listen to events, and go on behind the last one at another gateway when the stream ends."""
        r = random.Random(f"{name} {self._seed}")
        heard, last = self.told.heard.setdefault(name, set()), ""
        while not self._is_over(heard):
            headers = {"Last-Event-ID": last} if last else {}
            url = f"{r.choice(self._places).url}/v1/topics/{TOPIC}/events?from=earliest&values=text"
            waiting: list[str] = []
            place = last
            try:
                async with httpx.AsyncClient(timeout=20) as http, http.stream("GET", url, headers=headers) as answer:
                    if answer.status_code not in (200, 429, 503):
                        self.told.report("refused", f"events: {answer.status_code}")
                    async for line in answer.aiter_lines():
                        if line.startswith("data:") and (value := json.loads(line[5:]).get("value")):
                            waiting.append(value)
                        elif line.startswith("id:"):
                            place = line[3:].strip()
                        elif not line:
                            heard.update(waiting)
                            waiting.clear()
                            last = place
                        if self._is_over(heard):
                            break
            except httpx.HTTPError:
                pass
            await asyncio.sleep(r.uniform(0.0, 0.3))


OPEN = frozenset({"TRANSACTION_RUNNING", "TRANSACTION_ABORTED"})
"""Codes of refusals that a program repeats."""


async def http_status(http: httpx.AsyncClient, url: str, body: Any, headers: dict[str, str]) -> int:
    """Return the status of a transaction; 0 without an answer."""
    try:
        return (await http.post(f"{url}/v1/transactions", json=body, headers=headers)).status_code
    except httpx.HTTPError:
        return 0


def judge(told: Told, logs: dict[str, list[str]]) -> Iterator[Violation]:
    """`logs`: values of each topic, as a reader finds them at the end."""
    yield from told.violations
    for topic, keys in ((TOPIC, told.stored), *((topic, told.committed) for topic in TOPICS)):
        counts = Counter(logs[topic])
        twice = [value for value, count in counts.items() if count > 1]
        lost = sorted(keys - counts.keys())
        if twice:
            yield Violation("stored twice", f"{topic}: {twice[:5]}")
        if lost:
            yield Violation("lost", f"{topic}: {lost[:5]}")
    if (one := sorted(set(logs[TOPICS[0]]) ^ set(logs[TOPICS[1]]))) != []:
        yield Violation("torn transaction", f"{one[:5]}")
    for name, heard in told.heard.items():
        if missed := sorted(told.stored - heard):
            yield Violation("not heard", f"{name}: {missed[:5]}")
    for value, leases in told.acked.items():
        if len(leases) > 1:
            yield Violation("acknowledged twice", f"{value}: {len(leases)} leases")
    if unfinished := sorted(told.queued - told.answered):
        yield Violation("never acknowledged", f"{unfinished[:5]}")
