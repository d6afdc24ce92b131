"""The background work of a term: checkpoints and compaction."""
