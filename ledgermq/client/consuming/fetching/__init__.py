"""Batches from brokers, or straight from the store."""
