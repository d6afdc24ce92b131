"""What callers may have under way: calls at their headers, bytes that arrive, requests in service."""
