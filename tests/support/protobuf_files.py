"""Files of Protobuf as descriptors, made without protoc, as serializers register them."""

from __future__ import annotations

import base64
from typing import Any

LABELS = {"optional": 1, "repeated": 3}
TYPES = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "message": 11, "bytes": 12}


def file(name: str, package: str, messages: dict[str, dict[str, str]], *imports: str, nested: str = "") -> Any:
    """``messages``: fields by name, each "int32", "repeated int32" or ".shop.Line" (a message). ``nested``: the
    message that the last one stands in.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    made = FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    for title, fields in messages.items():
        last = title == list(messages)[-1]
        where = made.message_type
        if nested and last:
            where = next(each for each in made.message_type if each.name == nested).nested_type
        message = where.add(name=title)
        for number, (field, kind) in enumerate(fields.items(), 1):
            label, _, kind = kind.rpartition(" ")
            is_message = kind.startswith(".")
            message.field.add(
                name=field,
                number=number,
                label=LABELS[label or "optional"],
                type=TYPES["message" if is_message else kind],
                type_name=kind if is_message else None,
            )
    return made


def serialized(made: Any) -> str:
    """As a registry gives it with ``format=serialized``."""
    return base64.b64encode(made.SerializeToString()).decode()


def classes(*files: Any) -> dict[str, Any]:
    """The messages of these files, by their full names. Later files may import earlier ones, and timestamps."""
    from google.protobuf import timestamp_pb2
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClassesForFiles

    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for each in files:
        pool.AddSerializedFile(each.SerializeToString())
    found: dict[str, Any] = GetMessageClassesForFiles([each.name for each in files], pool)
    return found
