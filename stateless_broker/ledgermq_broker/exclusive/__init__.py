"""Exclusive producers: which producer has a partition for itself, and which may write to it."""
