"""The command ``raylog``: one module per group of commands, ``output`` for how they speak, ``main``
for how they end.

Commands import Ray, pyarrow and the clients inside their functions, so that help and usage errors
answer at once.
"""
