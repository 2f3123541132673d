"""Imported as ``raylog.placement`` only: the folder stands at the root of the project, not in
site-packages.
"""

if __name__ != "raylog.placement":
    raise ImportError("import raylog.placement, not placement: the bare name is not part of raylog's public surface")
