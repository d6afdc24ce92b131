"""Stand in for the data source in an interpreter that cannot load it.

It imports nothing of this project at its top, because nothing may be installed.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from pyspark.sql.datasource import DataSource


class Refusing(DataSource):
    """Refuse every call with `cause`, an error that says what is missing and what to do."""

    cause = ""

    @classmethod
    def name(cls) -> str:
        return "ledgermq"

    def __init__(self, options: dict[str, str]) -> None:
        raise ImportError(self.cause)

    def schema(self) -> NoReturn:
        raise ImportError(self.cause)


def source_that_refuses(error: ImportError | AttributeError) -> type[DataSource]:
    hidden = _hidden(error)
    if hidden is None and isinstance(error, AttributeError):
        raise error  # a fault, and no failed import
    Refusing.cause = hidden or wrong_interpreter(str(error))
    return Refusing


def _hidden(error: ImportError | AttributeError) -> str | None:
    """Return which file of the user's hides a module; None: none does, or LedgerMQ is not there to look."""
    try:
        from ledgermq.runtime.process.missing_modules import hiding
    except ImportError:
        return None
    hidden = hiding(error)
    return f"Spark cannot load ledgermq: {hidden} ({error})" if hidden is not None else None


def wrong_interpreter(cause: str) -> str:
    chosen = os.environ.get("PYSPARK_PYTHON")
    why = (
        f"PYSPARK_PYTHON names it ({chosen})"
        if chosen
        else "PYSPARK_PYTHON is not set, so Spark took python3 from PATH"
    )
    version = ".".join(map(str, sys.version_info[:3]))
    return (
        f"Spark runs the source in {sys.executable} (Python {version}), which cannot load ledgermq: {cause}. {why}. "
        'Set PYSPARK_PYTHON to the interpreter that has "ledgermq[spark]" before the Spark session begins, '
        'in the program with os.environ["PYSPARK_PYTHON"] = sys.executable (docs/spark.md).'
    )
