"""The client id of those who give none: inside a Ray job the job's, so that a quota can be set on it.

``ray-job-<submission id>`` where the job was submitted (``ray job submit``, Ray's Jobs API), else
``ray-job-<job id>``, in the hexadecimal digits of ``ray list jobs``. The driver, its tasks and its
actors have the same.

This module does not import Ray: a program that has not imported it is in no job.
"""

from __future__ import annotations

import sys
from typing import Any, Final

DEFAULT_CLIENT_ID: Final = "raylog"
PREFIX: Final = "ray-job-"
_SUBMISSION_ID: Final = "job_submission_id"


def default_client_id() -> str:
    """The client id of a client that was given none, in this process and now."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", lambda: False)():  # it may be half imported
        return DEFAULT_CLIENT_ID
    context = ray.get_runtime_context()
    return f"{PREFIX}{_submission_id(context) or context.get_job_id()}"


def _submission_id(context: Any) -> str | None:
    """None where nobody submitted the job, or where Ray does not tell."""
    try:
        metadata = context.worker.core_worker.get_job_config().metadata
    except AttributeError:  # Ray Client has no core worker
        return None
    return metadata.get(_SUBMISSION_ID) or None
