"""Backlog quotas of topics."""
