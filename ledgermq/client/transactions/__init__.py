"""Transactions of a client: records of any topics, and offsets of groups, all or nothing.

Transactions ──begin──> Transaction ──send──> Producer with Staging ──stage──> owners of partitions
     │                       ├──send_offsets──> coordinators of groups
     └──init                 └──commit, abort──> coordinator of the transactional id
HalfMessages ──send──> HalfMessage ──commit, rollback──> coordinator of the message's transactional id
     └──Checks ──poll──> all coordinators
"""
