"""Protobuf, decoded by Google's library from descriptors.

A registry keeps the text of a .proto file. To read that, a program needs protoc or a parser of its
own; but a registry also gives the file's descriptor, which is what protoc makes of the text, if it is
asked with ``format=serialized``. Google's library takes that as it is, so nothing else is needed. For
registries that give only the text there is ``proto_text``.

Files that come with Protobuf itself are taken from the library. Any other import that is not among the
references (those with options, for one) stands for an empty file: where a message needs a type of it,
the library refuses the schema.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from raylog.extras import missing
from raylog.schemas.proto_text import descriptors
from raylog.schemas.wire_format import NotDecodedError, message_path

OWN_FILES: Final = ("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct",
                    "timestamp", "type", "wrappers")  # fmt: skip
"""Of google/protobuf: those whose types messages have."""
VALUES_MAX: Final = 4_000_000
"""Fields that may have to be shown with their defaults; where there could be more, those are left out."""


class ProtobufSchema:
    """One file: its descriptor in base64, or its text. ``referenced``: the files that it imports, by the
    names that it uses, of the same kind.
    """

    def __init__(self, text: str, referenced: Mapping[str, str] | None = None, name: str = "schema.proto") -> None:
        """Blocks where it is text. Raises NotDecodedError, MissingExtraError and what the library raises of
        files that don't fit.
        """
        try:
            from google.protobuf.descriptor_pool import DescriptorPool
        except ModuleNotFoundError as error:
            raise missing(error, "decoding Protobuf") from error
        texts = {**(referenced or {}), name: text}
        files = {each: _descriptor(content, each) for each, content in texts.items()}
        if None in files.values():
            files = descriptors(texts, name)
        self.size_bytes = sum(map(len, texts.values()))
        self._file = files[name]
        self._pool = DescriptorPool()
        _add(self._pool, self._file, files, set())
        self._classes: dict[tuple[int, ...], Any] = {}
        self._fields_max = max(
            (len(each.field) for file in files.values() for each in _messages(file.message_type)),
            default=0,
        )

    def decode(self, payload: bytes) -> tuple[str, Any]:
        """As ``ReadySchema``."""
        from google.protobuf.json_format import MessageToDict

        path, start = message_path(payload)
        kind = self._classes.get(path)
        if kind is None:
            kind = self._classes[path] = self._class(path)
        message = kind()
        message.ParseFromString(payload[start:])
        value = MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=len(payload) * self._fields_max <= VALUES_MAX,
            descriptor_pool=self._pool,
        )
        return f"Protobuf {kind.DESCRIPTOR.full_name}", value

    def _class(self, path: tuple[int, ...]) -> Any:
        from google.protobuf.message_factory import GetMessageClass

        names, messages = [self._file.package] if self._file.package else [], self._file.message_type
        for index in path:
            if not 0 <= index < len(messages):
                raise NotDecodedError(f"its schema has no message {'.'.join(map(str, path))}")
            names.append(messages[index].name)
            messages = messages[index].nested_type
        return GetMessageClass(self._pool.FindMessageTypeByName(".".join(names)))


def _descriptor(text: str, name: str) -> Any:
    """None: it is no descriptor, but a text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    found.name = name
    return found


def _add(pool: Any, file: Any, files: Mapping[str, Any], added: set[str]) -> None:
    """The file, behind those that it imports."""
    added.add(file.name)
    for name in file.dependency:
        if name not in added:
            _add(pool, files[name] if name in files else _of_library(name), files, added)
    pool.AddSerializedFile(file.SerializeToString())


def _of_library(name: str) -> Any:
    """A file that comes with Protobuf, or an empty one."""
    from importlib import import_module

    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    found = FileDescriptorProto(name=name)
    short = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if short in OWN_FILES and name == f"google/protobuf/{short}.proto":
        found.ParseFromString(import_module(f"google.protobuf.{short}_pb2").DESCRIPTOR.serialized_pb)
    return found


def _messages(found: Any) -> list[Any]:
    return [each for one in found for each in (one, *_messages(one.nested_type))]
