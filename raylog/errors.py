"""Every error that raylog raises on purpose, with its Kafka code and whether trying again can help.

::

    RaylogError                       code −1 unless a subclass says otherwise
    ├── ConfigError                   a key or value in a configuration (INVALID_CONFIG); names the right key
    ├── ClusterError                  a cluster cannot start or be found: the message says what to do
    │   ├── DiskError                 a folder: foreign, unwritable, of a newer version
    │   │   └── DiskLockedError       another process has it; may pass, if that one is dying
    │   └── RayError                  no Ray, another version, another token
    ├── MissingExtraError             a package that an extra of raylog installs is not there
    ├── ClientTimeoutError            a deadline of the client passed (delivery.timeout.ms, request timeouts)
    │   └── BufferFullError           buffer.memory stayed full for max.block.ms
    ├── ClosedError                   a handle was used after close()
    ├── TransactionStateError         a transaction that is not under way, or one too many: the program's mistake
    ├── TransactionAbortedError       a transaction failed and is aborted; retriable, as a whole (TRANSACTION_ABORTABLE)
    ├── SerializationError            a user's serializer or deserializer failed
    ├── ProtocolError                 bytes that are no frame, an unknown API, a failed handshake
    ├── SslAuthenticationError        a TLS handshake that trying again cannot mend; says what to do
    ├── DisconnectedError             the peer closed or died; retriable (NETWORK_EXCEPTION)
    └── KafkaError                    an error code of the protocol; one subclass per code: ``NotLeaderOrFollowerError`` …

``error_for(code)`` turns a wire code into its exception and ``code_of(error)`` does the reverse:
the only two places where codes and exceptions meet. Names and retriability are those of Kafka's
``Errors`` (kio's ``ErrorCode``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kio.schema.errors import ErrorCode


class RaylogError(Exception):
    """The root. ``code`` is Kafka's number for it, ``retriable`` whether the same call may succeed
    later.
    """

    code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error
    retriable: ClassVar[bool] = False


class ConfigError(RaylogError):
    code = ErrorCode.invalid_config


class ClusterError(RaylogError):
    pass


class DiskError(ClusterError):
    code = ErrorCode.kafka_storage_error


class DiskLockedError(DiskError):
    retriable = True


class RayError(ClusterError):
    pass


class MissingExtraError(RaylogError, ImportError):
    pass


class ClientTimeoutError(RaylogError):
    code = ErrorCode.request_timed_out
    retriable = True


class BufferFullError(ClientTimeoutError):
    pass


class ClosedError(RaylogError):
    pass


class TransactionStateError(RaylogError):
    code = ErrorCode.invalid_txn_state


class TransactionAbortedError(RaylogError):
    code = ErrorCode.transaction_abortable
    retriable = True


class SerializationError(RaylogError):
    pass


class ProtocolError(RaylogError):
    code = ErrorCode.invalid_request


class SslAuthenticationError(RaylogError):
    pass


class DisconnectedError(RaylogError):
    code = ErrorCode.network_exception
    retriable = True


@dataclass(frozen=True, slots=True)
class RecordError:
    """A record for which a leader refused a batch (KIP-467): its index in the batch, from 0, and
    what is wrong with it.
    """

    index: int
    message: str


class KafkaError(RaylogError):
    """An error code of Kafka's protocol. Raise a subclass from ``error_for``; the message names
    topic, partition and remedy.

    ``record_errors`` names the records at fault where a leader refused a batch for some of its
    records, ascending. Of a ``send_batch`` they count its values.
    """

    record_errors: tuple[RecordError, ...] = ()


def _subclass(code: ErrorCode) -> type[KafkaError]:
    name = "".join(word.capitalize() for word in code.name.split("_"))
    name = name.removesuffix("Exception").removesuffix("Error") + "Error"
    return type(name, (KafkaError,), {"code": code, "retriable": code.retriable, "__module__": __name__})


_BY_CODE: dict[ErrorCode, type[KafkaError]] = {
    code: _subclass(code) for code in ErrorCode if code is not ErrorCode.none
}
for _class in _BY_CODE.values():
    globals()[_class.__name__] = _class  # so that they pickle and can be caught by name


def kafka_error(code: ErrorCode) -> type[KafkaError]:
    """The exception class of a code, to raise or to catch: ``except
    kafka_error(ErrorCode.not_leader_or_follower)``.
    """
    return _BY_CODE[code]


def error_for(code: int, message: str | None = None) -> KafkaError:
    """The exception for an error code that came over the wire.

    A code that this version does not know becomes ``UnknownServerError`` and says so.
    """
    try:
        known = ErrorCode(code)
    except ValueError:
        return _BY_CODE[ErrorCode.unknown_server_error](f"error code {code}, unknown to this version: {message or ''}")
    return _BY_CODE[known](message or (known.name.upper()))


def code_of(error: BaseException) -> ErrorCode:
    """The wire code of an exception; anything that is not ours is UNKNOWN_SERVER_ERROR."""
    return error.code if isinstance(error, RaylogError) else ErrorCode.unknown_server_error
