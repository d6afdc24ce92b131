"""One broker with rules for all attacks of a file that do not harm it: what each needs it creates under names of
its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.attacks.cluster import Attacked, attacked


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """The broker of a file; clients of it belong to the loop of each test."""
    stack = AsyncExitStack()
    with asyncio.Runner() as runner:
        try:
            yield runner.run(stack.enter_async_context(attacked(tmp_path_factory.mktemp("attacked"))))
        finally:
            runner.run(stack.aclose())
