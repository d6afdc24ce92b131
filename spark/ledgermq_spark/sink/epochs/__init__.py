"""Epochs of a sink: rows are staged, what an epoch is gets decided once, then it is published."""
