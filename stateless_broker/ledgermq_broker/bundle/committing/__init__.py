"""Admit batches of producers, and commit them in groups."""
