"""Find what serves a call about transactions: the coordinator of an id, the participant of a bundle."""
