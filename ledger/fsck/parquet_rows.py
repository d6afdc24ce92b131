"""All rows of a Parquet file of ours, whichever kind: read with every check that it allows."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from ledger.parquet.columns import SCHEMA
from ledger.parquet.footer_checksum import check_whole


def read_rows(data: bytes, key: str) -> pa.Table | str:
    """Blocking. The table, or what is wrong with it. Raises DataDamaged."""
    check_whole(data, key)
    try:
        table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True).read()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"it cannot be read: {error}"
    return table if table.schema.remove_metadata() == SCHEMA else "its columns are not those of our Parquet files"
