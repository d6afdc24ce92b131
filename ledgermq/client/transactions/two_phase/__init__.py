"""Transactions with two phases, and with branches in several processes."""
