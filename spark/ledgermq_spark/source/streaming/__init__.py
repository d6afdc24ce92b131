"""Streaming queries: positions, the ledgers that are followed, and the driver's side."""
