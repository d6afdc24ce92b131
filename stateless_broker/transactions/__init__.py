"""Serve transactions: the owner of each bundle stages, completes and drops what producers have put
there; the owners of the partitions of `__transactions` decide.
"""
