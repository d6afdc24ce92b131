"""Rows and columns of Arrow as records."""
