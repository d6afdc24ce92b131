"""Stand in for the data source in an interpreter that cannot load it.

It imports nothing of this project, because nothing may be installed.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from pyspark.sql.datasource import DataSource


class Refusing(DataSource):
    """Refuse every call with an error that names the interpreter and what it lacks."""

    cause = ""

    @classmethod
    def name(cls) -> str:
        return "ledgermq"

    def __init__(self, options: dict[str, str]) -> None:
        raise ImportError(wrong_interpreter(self.cause))

    def schema(self) -> NoReturn:
        raise ImportError(wrong_interpreter(self.cause))


def source_that_refuses(error: ImportError) -> type[DataSource]:
    Refusing.cause = str(error)
    return Refusing


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
