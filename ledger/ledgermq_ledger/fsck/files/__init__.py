"""Checks of Parquet files: those of the log, and those of keyed topics."""
