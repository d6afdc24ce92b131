"""Numbered objects beside the segments: checkpoints, plans and snapshots, each in an envelope."""
