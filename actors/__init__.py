"""Imported as ``raylog.actors`` only: the folder stands at the project's root, its name in nobody's site-packages."""

if __name__ != "raylog.actors":
    raise ImportError("import raylog.actors, not actors: the bare name is not part of raylog's public surface")

if not __debug__:
    from raylog.errors import ConfigError

    raise ConfigError(
        "raylog's servers check their invariants with assert statements, which this Python leaves out: run it without -O, and "
        "unset PYTHONOPTIMIZE"
    )
