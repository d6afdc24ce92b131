"""The archive of Parquet files that retention removes: moved there, owned, read."""
