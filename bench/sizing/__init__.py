"""What a cluster for a given load needs: measured costs, a simulation of the full protocol at the
distance of S3, and a page of both.
"""
