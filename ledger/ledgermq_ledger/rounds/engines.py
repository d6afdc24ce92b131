"""Find the engines that can run Parquet compaction: the entry-point group "ledgermq.engines".

Each entry point is a function `(Sources) -> AbstractContextManager[Engine]`, so that an engine may
start a session and stop it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from ledgermq.errors import InvalidRequest
from ledgermq.runtime.process.missing_modules import what_to_do
from ledgermq.sources import Sources

if TYPE_CHECKING:
    from ledgermq_ledger.parquet.engine import Engine

GROUP = "ledgermq.engines"

OpenEngine = Callable[[Sources], "AbstractContextManager[Engine]"]


def find_engine(name: str) -> OpenEngine:
    """Find an engine. Raises InvalidRequest for an engine that is unknown or whose extra is not
    installed.
    """
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in found:
        raise InvalidRequest(f"there is no engine {name!r}; choose one of {', '.join(sorted(found))}")
    try:
        open_engine: OpenEngine = found[name].load()
    except ImportError as error:
        advice = what_to_do(error, f"pip install 'ledgermq[{name}]'")
        raise InvalidRequest(f"engine {name!r} cannot be loaded: {advice}") from error
    return open_engine


@contextmanager
def local(sources: Sources) -> Iterator[Engine]:
    """Run tasks in threads of this process."""
    from ledgermq_ledger.parquet.engine import (
        LocalEngine,
    )  # late, because it imports Arrow's Parquet code, which other commands do not need

    yield LocalEngine(sources)
