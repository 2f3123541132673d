"""The cluster's metadata: the image that the quorum's log of records folds to, and the controller
that decides them. Pure.

Here: ``records`` and ``image`` (what is decided), ``requests`` and ``events`` (what is said),
``ledger``, ``active`` (one term of a controller), ``controller`` (a member of the quorum, active or
not). ``partitions``, ``actors`` and ``configuration`` hold the rules and the decisions about each.
"""
