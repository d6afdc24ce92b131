"""Consumer groups, the member's side: membership, what was finished and committed, handlers.

Reads through `client.consuming`.
"""
