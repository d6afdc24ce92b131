"""Parquet files: their columns and footers, written and read by row groups."""
