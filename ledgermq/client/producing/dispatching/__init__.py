"""Batches on their way to brokers, and where the brokers are."""
