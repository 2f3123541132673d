"""Coordinators on replicated logs: one machine for each partition of an internal topic, at whoever
leads it. Pure.

``runtime`` runs one kind of coordinator in one process; ``coordinator`` is what every partition's
coordinator does whatever its kind; ``machine`` is what a kind adds: how it decides, and what its
records mean. Consumer groups (``raylog.groups``) are the first kind.
"""
