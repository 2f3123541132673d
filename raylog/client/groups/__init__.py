"""A consumer's part in its group: ``member`` is the pure machine, ``membership`` runs it."""
