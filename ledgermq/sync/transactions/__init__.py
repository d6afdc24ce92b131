"""Transactions and half messages."""
