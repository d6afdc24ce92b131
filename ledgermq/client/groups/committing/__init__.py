"""Commits of one member of a group."""
