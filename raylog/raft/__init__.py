"""Raft: how the controllers agree on one log. ``quorum`` is the machine; ``metadata_log`` keeps its
log and its vote on a disk.

Knows nothing of what the entries mean: the metadata's records are ``raylog.metadata``'s. All pure
but for ``Files``.
"""
