"""Administration of consumer groups: list, describe, lag, reset, delete."""
