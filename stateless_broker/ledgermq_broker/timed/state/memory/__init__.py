"""Rows of blocks in memory: their index, their order, and what is cut out of them."""
