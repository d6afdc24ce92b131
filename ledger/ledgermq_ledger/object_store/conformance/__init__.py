"""Check that a store keeps what ledgers need of it."""
