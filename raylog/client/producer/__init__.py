"""The producer: ``producer`` takes records, ``accumulator`` and ``partition_queue`` gather them,
``sender`` brings them to leaders.
"""
