"""The servers as plain classes: what the Ray actors wrap and the in-process cluster runs."""

if not __debug__:
    from raylog.errors import ConfigError

    raise ConfigError(
        "raylog's servers check their invariants with assert statements, which this Python leaves out: run it without -O, and "
        "unset PYTHONOPTIMIZE"
    )
