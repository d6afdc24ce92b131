"""Check stores, before they hold a root."""
