"""Checks of one ledger: segments, offsets, moves, and what rounds of compaction left."""
