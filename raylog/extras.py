"""What the extras of raylog's package install, and the error where one is missing.

A plain ``pip install raylog`` has the clients, the command line and the test broker. Everything
else needs packages that are large, so each comes with an extra::

    raylog[arrow]    pyarrow and uvloop: Arrow tables for producers and consumers, at full speed
    raylog[console]  raylog console: starlette, uvicorn and jinja2
    raylog[schemas]  --schema-registry of console and consume: fastavro and protobuf
    raylog[protoc]   the same with registries that give .proto files as text only: grpcio-tools
    raylog[secure]   raylog up --secure: cryptography, which makes certificates
    raylog[ray]      the servers: init, arrange, raylog up, and finding a cluster through Ray
    raylog[oauth]    listeners that verify signed tokens (OAUTHBEARER): PyJWT and cryptography
    raylog[data]     raylog.data: Ray Data and Ray Train
    raylog[spark]    raylog.spark on a session of the user's own: PySpark and a Java
    raylog[raydp]    raylog.spark.init, a session on the cluster's Ray: RayDP, and a PySpark that it runs
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from raylog.errors import MissingExtraError

_EXTRA_OF = {
    "cryptography": "secure",
    "fastavro": "schemas",
    "google": "schemas",
    "grpc": "ray",
    "grpc_tools": "protoc",
    "jinja2": "console",
    "jwt": "oauth",
    "pandas": "data",
    "pyarrow": "arrow",
    "pyspark": "spark",
    "ray": "ray",
    "raydp": "raydp",
    "starlette": "console",
    "uvicorn": "console",
}


def is_installed(package: str) -> bool:
    """Whether the package is there. Does not import it."""
    try:
        return package in sys.modules or find_spec(package) is not None
    except ModuleNotFoundError:  # of "google.protobuf" not even "google"
        return False


def need(package: str, purpose: str, extra: str | None = None) -> None:
    """Raise MissingExtraError if the package is not installed. Does not import it.

    ``purpose`` is what needs it, as the start of a sentence: "poll_batch". ``extra`` as in
    ``missing``.
    """
    if not is_installed(package):
        raise missing(ModuleNotFoundError(name=package), purpose, extra)


def need_console(purpose: str) -> None:
    """As ``need``, for all that the console is made of."""
    for package in ("starlette", "uvicorn", "jinja2"):
        need(package, purpose)


def missing(error: ModuleNotFoundError, purpose: str, extra: str | None = None) -> ImportError:
    """What to raise for an import that failed: the error itself, unless an extra would mend it.

    ``extra`` is the one to name; None takes the smallest that has the package.
    """
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRA_OF:
        return error
    extra = extra or _EXTRA_OF[package]
    return MissingExtraError(f"{purpose} needs {package}, which is not installed: pip install 'raylog[{extra}]'")
