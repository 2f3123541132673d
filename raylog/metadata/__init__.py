"""The cluster's metadata: a quorum's log of records, the image that they fold to, and the controller that decides them. Pure.

Bottom up: ``records`` and ``image`` (what is decided), ``elections`` and ``topic_configs`` (rules), ``requests``, ``session`` and
``events`` (what is said), ``quorum`` and ``metadata_log`` (how it is agreed and kept), ``liveness``, ``sessions``, ``starts``,
``ledger`` and the ``*_decisions`` (the parts of an active controller), ``active`` (one term of it), ``controller`` (a member of the
quorum, active or not).
"""
