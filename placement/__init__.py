"""Imported as ``raylog.placement`` only: the folder stands at the project's root, its name in nobody's site-packages."""

if __name__ != "raylog.placement":
    raise ImportError("import raylog.placement, not placement: the bare name is not part of raylog's public surface")
