"""Cuts: an instant of the whole cluster gets a name (docs/design.md, chapter 23)."""
