"""A whole cluster in one process, on simulated machines, disks, links and clocks: one seed is one
run, and replays exactly.

``python -m raylog.simulator`` runs seeds. ``simulation`` puts a cluster together, ``faults``
strikes it, ``checkers`` says what must hold.
"""
