"""Cuts: instants of the whole cluster with names."""
