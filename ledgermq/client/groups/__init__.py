"""Consumer groups on the member's side: membership, progress, commits, handlers.

Reads through `client.consuming`.
"""
