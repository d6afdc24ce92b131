"""Count what each feature reports: one module for each, named as the feature's room is."""
