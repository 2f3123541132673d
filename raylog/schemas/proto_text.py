"""The text of .proto files, read by the protoc that grpcio-tools brings, for registries that give no descriptors.

protoc runs in a process of its own, in a folder that holds nothing but these files, and has
``PROTOC_S`` seconds.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from raylog.errors import MissingExtraError
from raylog.extras import need
from raylog.schemas.registry import shortened
from raylog.schemas.wire_format import NotDecodedError

PROTOC_S: Final = 20.0
_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)*", re.ASCII)
"""Of a file, below the folder: no part begins with a dot."""


def descriptors(texts: Mapping[str, str], main: str) -> dict[str, Any]:
    """By name, the descriptors of the file ``main`` and of all that it imports. Blocks. Raises
    NotDecodedError.
    """
    try:
        need("grpc_tools", "a registry that gives Protobuf schemas as text only")
    except MissingExtraError as error:
        raise NotDecodedError(str(error)) from None
    import grpc_tools
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    own = Path(str(grpc_tools.__file__)).parent / "_proto"
    with TemporaryDirectory(prefix="raylog-proto-") as folder:
        for name, text in texts.items():
            if not _NAME.fullmatch(name):
                raise NotDecodedError(f"its schema imports {shortened(name)!r}, which is no name of a file")
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        made = Path(folder) / ".made"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{own}", "--include_imports"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={made}", main], capture_output=True, timeout=PROTOC_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotDecodedError(f"protoc took more than {PROTOC_S:.0f} s for its schema") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").replace(f"{folder}/", "").splitlines()
            said = next((line for line in lines if ".proto:" in line), "protoc failed")
            raise NotDecodedError(f"its schema is no .proto file: {shortened(said)}")
        return {each.name: each for each in FileDescriptorSet.FromString(made.read_bytes()).file}
