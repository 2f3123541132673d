"""A schema registry, as far as serializers and readers need one: a process that keeps schemas in memory and speaks Confluent's REST.

Of a Protobuf schema it gives a text, as registries do, unless it is asked for ``format=serialized``.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

Schema = dict[str, Any]
PROTO_TEXT = "// what a .proto file says"


class Registry:
    """One that runs."""

    def __init__(self, url: str, process: subprocess.Popen[str], log: Path) -> None:
        self.url = url
        self.process = process
        self._log = log

    def register(self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Schema] = ()) -> int:
        """Another version of a subject; the schema's id."""
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        url = f"{self.url}/subjects/{quote(subject, safe='')}/versions"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(json.load(answer)["id"])

    def asked(self) -> list[str]:
        """The paths of all GETs, in order."""
        return self._log.read_text().splitlines()


@contextmanager
def schema_registry(folder: Path, *, authorization: str = "") -> Iterator[Registry]:
    """On a free port of 127.0.0.1. ``authorization``: what each request has to bring, as "user:password"."""
    log = folder / "asked"
    log.touch()
    command = [sys.executable, str(Path(__file__).resolve()), str(log), authorization]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Registry(process.stdout.readline().strip(), process, log)
    finally:
        process.kill()
        process.communicate()


def framed(schema_id: int, payload: bytes) -> bytes:
    """A message in the wire format."""
    return b"\x00" + schema_id.to_bytes(4, "big") + payload


class _Handler(BaseHTTPRequestHandler):
    schemas: list[Schema] = []
    subjects: dict[str, list[int]] = {}
    log = Path()
    authorization = ""

    def do_GET(self) -> None:
        with self.log.open("a") as file:
            file.write(self.path + "\n")
        parts = urlsplit(self.path)
        if self.authorization and self.headers["Authorization"] != self.authorization:
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
        elif found := re.fullmatch(r"/schemas/ids/(\d+)", parts.path):
            self._give(int(found[1]), parts.query)
        elif found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", parts.path):
            ids = dict(enumerate(self.subjects.get(unquote(found[1]), []), 1))
            self._give(ids.get(int(found[2]), 0), parts.query)
        else:
            self._answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

    def _give(self, schema_id: int, query: str) -> None:
        if not 1 <= schema_id <= len(self.schemas):
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})
            return
        schema = dict(self.schemas[schema_id - 1])
        if schema.get("schemaType") == "PROTOBUF" and "format=serialized" not in query:
            schema["schema"] = PROTO_TEXT
        self._answer(200, schema)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        schema = {name: given[name] for name in ("schema", "schemaType", "references") if given.get(name)}
        if schema.get("schemaType") == "AVRO":
            del schema["schemaType"]
        subject = unquote(self.path.split("/")[2])
        if schema not in self.schemas:
            self.schemas.append(schema)
        schema_id = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        self._answer(200, {"id": schema_id, "subject": subject, "version": versions.index(schema_id) + 1, **schema})

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(log: str, authorization: str) -> None:
    _Handler.log = Path(log)
    _Handler.authorization = "Basic " + base64.b64encode(authorization.encode()).decode() if authorization else ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
