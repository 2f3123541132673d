"""Imported as ``raylog.actors`` only: the folder stands at the project's root, its name in nobody's
site-packages.
"""

if __name__ != "raylog.actors":
    raise ImportError("import raylog.actors, not actors: the bare name is not part of raylog's public surface")
