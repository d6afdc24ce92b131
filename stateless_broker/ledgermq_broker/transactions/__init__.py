"""Serve transactions: the owner of each bundle stages batches, and makes them visible or drops them;
the owners of the partitions of `__transactions` decide.
"""
