"""The schema registry: schemas of subjects as records of `__metadata`."""
