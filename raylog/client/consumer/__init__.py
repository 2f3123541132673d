"""The consumer: ``consumer`` answers the user, ``fetcher`` keeps its buffer filled, ``positions``
says where to read.
"""
