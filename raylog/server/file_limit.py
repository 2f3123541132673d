"""How many file descriptors a server process may have: as many as the machine's rules let it, not
as few as its shell began with.
"""

from __future__ import annotations

import resource

from raylog.log.open_files import DESCRIPTORS_MAX


def raise_file_limit() -> int:
    """Raise this process's soft limit towards its hard one; returns how many descriptors it may
    have from here on.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_MAX
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
    return max(soft, wanted)
