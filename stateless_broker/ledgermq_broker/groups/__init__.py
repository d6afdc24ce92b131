"""Coordinate consumer groups: the coordinators are the owners of the partitions of
`__consumer_offsets`.
"""
