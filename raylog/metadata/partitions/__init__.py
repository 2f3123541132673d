"""Topics and partitions as a controller decides them: elections, ISR changes, creations, moves and
reassignments.

The ``*_decisions`` turn a request into records; ``elections``, ``moves``, ``reassignments`` and
``new_partitions`` are the rules that they go by; ``announcements`` says what each process hears of
it.
"""
