"""Starts streaming queries on machines that are busy."""

from __future__ import annotations

import time
from collections.abc import Callable

from pyspark.sql.streaming import StreamingQuery

NOT_STARTED = "Python worker failed to connect back"
"""Spark waits ten seconds for the reader beside the driver to start, whatever else the machine
does.
"""
TRIES_MAX = 10


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """A query whose reader is up, or that has failed for another reason."""
    for _ in range(TRIES_MAX):
        query = start()
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.05)
        if NOT_STARTED not in str(query.exception()):
            break
    return query
