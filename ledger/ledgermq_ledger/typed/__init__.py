"""Typed values: the columns that a subject's schemas make of the values of a topic, and how they are decoded."""
