"""Stores around a store: requests bounded and retried, counted."""
