"""Names and ids: of topics, groups, clients, producers and messages; tokens."""
