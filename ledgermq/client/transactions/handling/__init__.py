"""Transactions of handlers and of group members."""
