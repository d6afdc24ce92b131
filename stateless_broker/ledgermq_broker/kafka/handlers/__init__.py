"""Handlers of requests: each is a client of the broker's API."""
