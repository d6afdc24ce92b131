"""Turn messages into data frames of polars and pandas.

Neither library is a dependency: each is imported when its function is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ledgermq.client.consuming.message import TABLE_SCHEMA, Message
from ledgermq.errors import InvalidConfig
from ledgermq.runtime.process.missing_modules import what_to_do

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


def to_polars(rows: pa.Table | Sequence[Message]) -> pl.DataFrame:
    """Return messages as a data frame of polars, without copying a table's data where polars can share it.

    `rows`: the table that `fetch_arrow` or `read_arrow` returned, or messages that `fetch` returned.
    Columns: those of `fetch_arrow`; `timestampType` is null for messages. Raises InvalidConfig if polars
    is not installed.
    """
    frame: pl.DataFrame = _library("polars").from_arrow(_table(rows))
    return frame


def to_pandas(rows: pa.Table | Sequence[Message]) -> pd.DataFrame:
    """Return messages as a data frame of pandas: keys and values as `bytes`, timestamps in UTC. See
    `to_polars`.

    Raises InvalidConfig if pandas is not installed.
    """
    _library("pandas")
    frame: pd.DataFrame = _table(rows).to_pandas()
    return frame


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InvalidConfig(f"to_{name} needs {name}: {what_to_do(error, f'pip install {name}')}") from error


def _table(rows: pa.Table | Sequence[Message]) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    columns = [
        [message.key for message in rows],
        [message.value for message in rows],
        [message.topic for message in rows],
        [message.partition for message in rows],
        [message.offset for message in rows],
        [message.timestamp_us for message in rows],
        [None] * len(rows),
        [[{"key": name, "value": data} for name, data in message.headers] or None for message in rows],
        [message.tag for message in rows],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, TABLE_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TABLE_SCHEMA)
