"""A broker with the port for clients of the Kafka protocol, in a thread of its own, as clients block theirs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ledgermq.sources import Sources
from ledgermq_broker.node import Node
from ledgermq_broker.settings.processes import load_settings


async def start(folder: Path, **settings: Any) -> Node:
    defaults = {"auto_create_topics": True, "default_partitions": 2, "background_compaction": False}
    chosen = load_settings(port=0, kafka_port=0, **{**defaults, **settings})
    return await Node.start(folder.as_uri(), chosen, Sources())


@contextmanager
def served(folder: Path, prepare: Callable[[Node], Awaitable[None]] | None = None, **settings: Any) -> Iterator[Node]:
    """Run a broker on a folder until the block ends. `prepare`: awaited in the broker's thread before it begins."""
    found: list[Node] = []
    is_up, is_over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with await start(folder, **settings) as node:
            if prepare is not None:
                await prepare(node)
            found.append(node)
            is_up.set()
            while not is_over.is_set():
                await asyncio.sleep(0.05)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="broker")
    thread.start()
    try:
        assert is_up.wait(120)
        yield found[0]
    finally:
        is_over.set()
        thread.join(120)
