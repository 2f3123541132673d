"""Every use of Ray's private names, for Ray 2.37 and later: nothing else in raylog touches them.

Ray has no public way to ask a head a question with a deadline, to learn which token its own client
would offer, to start a node with another worker script, to see which nodes are draining, to keep a
note with the head, or to have what it tells printed on stderr.
Tokens came with Ray 2.52, so what asks for them says "none" before it. A name that a later Ray no
longer has is a RayError that says so. Importing this module does not import Ray.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from raylog.errors import RayError


def _private(*places: str) -> Any:
    """The first of these, each "module:name", that this Ray has. RayError if it has none."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            found: Any = import_module(module)
            return getattr(found, name) if name else found
        except (ImportError, AttributeError):
            continue
    import ray

    raise RayError(
        f"Ray {ray.__version__} has no {places[0]}, which raylog needs: use a Ray that docs/platforms.md names"
    )


# ------------------------------------------------------------------ tokens


def _token_loader() -> Any:
    """None where this Ray knows no tokens."""
    import ray

    raylet: Any = ray._raylet
    loader = getattr(raylet, "AuthenticationTokenLoader", None)
    return None if loader is None else loader.instance()


def has_tokens() -> bool:
    """Whether this Ray knows authentication by token."""
    return _token_loader() is not None


def _asked(loader: Any, question: str) -> Any:
    try:
        return getattr(loader, question)(ignore_auth_mode=True)
    except TypeError:  # the first Rays with tokens know of one only where RAY_AUTH_MODE says so
        return getattr(loader, question)()


def machines_token() -> str | None:
    """The token that is set up on this machine, whether or not this process uses it."""
    loader = _token_loader()
    if loader is None or not _asked(loader, "has_token"):
        return None
    return str(_asked(loader, "get_raw_token"))


def own_token() -> str | None:
    """The token that this process's connection uses; None if it uses none."""
    import ray

    raylet: Any = ray._raylet
    if not has_tokens() or raylet.get_authentication_mode() != raylet.AuthenticationMode.TOKEN:
        return None
    return str(_asked(_token_loader(), "get_raw_token"))


def clusters_token() -> str | None:
    """The token that all processes of this process's Ray share; None if it has none. Kubernetes'
    tokens are each somebody's own.
    """
    return None if is_k8s() else own_token()


def is_k8s() -> bool:
    """Whether tokens are Kubernetes', which only Ray's own client knows how to offer: then it's
    asked alone.
    """
    import ray

    raylet: Any = ray._raylet
    return hasattr(raylet, "is_k8s_token_auth_enabled") and bool(raylet.is_k8s_token_auth_enabled())


def offer_token() -> None:
    """As ``ray.init("auto")`` does, which takes no address and so might find another Ray than the
    one that was asked. Before Ray 2.60 only RAY_AUTH_MODE makes a client offer one.
    """
    if has_tokens():
        setup = _private("ray._private.authentication.authentication_token_setup")
        offer = getattr(setup, "maybe_enable_token_auth_if_token_available", None)
        if offer is not None:
            offer(warn_if_disabled=False)


def is_authentication_error(error: BaseException | None) -> bool:
    """Whether Ray was refused for its token."""
    return "AuthenticationError" in type(error).__name__ or "AuthenticationError" in str(error)


def read_environment() -> None:
    """Make Ray read the environment again: it read it when it was imported."""
    import ray

    raylet: Any = ray._raylet
    raylet.Config.initialize("")
    if has_tokens():
        _token_loader().reset_cache()


# ------------------------------------------------------------------ the head's protocol


def head_messages() -> tuple[Any, Any]:
    """The modules of a head's messages: ``gcs_pb2`` and ``gcs_service_pb2``."""
    return _private("ray.core.generated.gcs_pb2"), _private("ray.core.generated.gcs_service_pb2")


def certificates() -> tuple[bytes, bytes, bytes]:
    """The chain, key and authority of RAY_USE_TLS."""
    load: Callable[[], tuple[bytes, bytes, bytes]] = _private(
        "ray._common.tls_utils:load_certs_from_env", "ray._private.tls_utils:load_certs_from_env"
    )
    return load()


# ------------------------------------------------------------------ starting a node


def node_class() -> Any:
    """The class of Ray's nodes, in the process that starts them."""
    return _private("ray._private.node:Node")


def parameters_class() -> Any:
    """The class of the parameters of a node that is started."""
    return _private("ray._private.parameter:RayParams")


def services() -> Any:
    """The module whose ``get_node`` a start asks until the node is there."""
    return _private("ray._private.services")


def constants() -> Any:
    """The module of Ray's switches, read when Ray is imported."""
    return _private("ray._private.ray_constants")


def command_line() -> Callable[[], Any]:
    """What ``ray …`` runs."""
    main: Callable[[], Any] = _private("ray.scripts.scripts:main")
    return main


# ------------------------------------------------------------------ a Ray that runs


def draining_nodes() -> dict[str, int]:
    """The nodes that are about to be taken away, by id in hexadecimal. Blocks while the head is
    away.
    """
    nodes: dict[str, int] = _private("ray._private.state:state").get_draining_nodes()
    return nodes


def free_resources() -> dict[str, dict[str, float]]:
    """What is free on each node, by id in hexadecimal."""
    free: dict[str, dict[str, float]] = _private("ray._private.state:available_resources_per_node")()
    return free


def logs_folder() -> Path | None:
    """Where this node's processes log; None if this process knows of no node."""
    node = _private("ray._private.worker")._global_node
    return None if node is None else Path(node.get_logs_dir_path())


# ------------------------------------------------------------------ notes that the head keeps

_NOTES = "ray.experimental.internal_kv"
_NOTES_NAMESPACE = b"raylog"


def messages_to_stderr() -> None:
    """What Ray tells this process of its nodes, such as that one has died, is printed on stderr from
    now on, not on stdout. Nothing where this process has no Ray, or where this Ray prints in another
    way.
    """
    worker: Any = sys.modules.get("ray._private.worker")
    plain = getattr(worker, "print_to_stdstream", None)
    if plain is None or getattr(plain, "is_raylogs", False):
        return

    def on_stderr(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        plain({**data, "is_err": True}, *arguments, **options)

    on_stderr.is_raylogs = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = on_stderr


def keep_note(key: str, note: bytes) -> None:
    """Have the head keep it for as long as it keeps its actors; an earlier one is replaced."""
    _private(f"{_NOTES}:_internal_kv_put")(key.encode(), note, overwrite=True, namespace=_NOTES_NAMESPACE)


def drop_note(key: str) -> None:
    """Nothing if there is none."""
    _private(f"{_NOTES}:_internal_kv_del")(key.encode(), namespace=_NOTES_NAMESPACE)


def notes(prefix: str) -> dict[str, bytes]:
    """Those whose keys begin so, by the rest of the key."""
    keys = _private(f"{_NOTES}:_internal_kv_list")(prefix.encode(), namespace=_NOTES_NAMESPACE)
    kept = {key: _private(f"{_NOTES}:_internal_kv_get")(key, namespace=_NOTES_NAMESPACE) for key in keys}
    return {key.decode().removeprefix(prefix): note for key, note in kept.items() if note is not None}
