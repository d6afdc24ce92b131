"""Batches of records as they travel and are stored."""
