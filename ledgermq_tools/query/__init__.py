"""Queries of topics with SQL, from the store alone."""
