"""Merge small Parquet files of a partition into larger ones beside the log (docs/decisions/0113)."""
