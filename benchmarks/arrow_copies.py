"""What every write from Spark through its Python workers has to do at least, and nothing else: the ceiling of ``bench_spark_write.py``.

Each task takes its Arrow batches, writes the record batches with raylog's kernel and their CRC-32C, and sends them with blocking calls
over a connection of its own. One process receives them, checks the CRC, writes them to the page cache and answers one byte for each; at
most ``IN_FLIGHT`` are unanswered, as with a producer. No requests, no event loops, no second thread, no idempotence, no retries, no log:
no producer and no server of this protocol can be faster here.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
import tempfile
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

from crc32c import crc32c

from raylog.records.batch import CRC_POSITION, CRC_START

IN_FLIGHT = 5
LARGEST_BATCH = 1 << 20
SIZE = struct.Struct(">I")


class ArrowCopies:
    """A receiving process that writes to a file in ``folder``, for as long as this is open."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._port, theirs = context.Pipe()
        self._process = context.Process(target=_receive, args=(theirs, str(folder)), daemon=True)
        self._process.start()
        theirs.close()
        self._address: tuple[str, int] = self._port.recv()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def write(self, frame: Any) -> int:
        """How many rows were written."""
        address, in_flight, bytes_max = self._address, IN_FLIGHT, LARGEST_BATCH

        def send(
            batches: Iterable[Any],
        ) -> Iterator[Any]:  # goes to the workers by value: they can't import this module
            import socket
            import struct

            import pyarrow as pa

            from raylog.records import kernel
            from raylog.records.arrow_writing import ArrowRows
            from raylog.spark.lasting_workers import make_lasting, reuse_memory

            reuse_memory()
            compiled = kernel.loaded()
            assert compiled is not None, "no kernel"
            count = unanswered = 0
            with socket.create_connection(address) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for batch in batches:
                    rows = ArrowRows(compiled, values=batch.column("value"), now_ms=0)
                    first = 0
                    while first < rows.count:
                        written = rows.encode(None, first, rows.count, bytes_max=bytes_max)
                        first += written.row_count
                        connection.sendall(struct.pack(">I", len(written.data)))
                        connection.sendall(written.data)
                        unanswered += 1
                        while unanswered >= in_flight:
                            unanswered -= len(connection.recv(unanswered))
                    count += rows.count
                while unanswered:
                    unanswered -= len(connection.recv(unanswered))
            make_lasting()
            yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], ["records"])

        return sum(row.records for row in frame.mapInArrow(send, "records bigint").collect())

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _receive(port: Pipe, folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port.send(listener.getsockname())
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_write_all, args=(connection, folder), daemon=True).start()


def _write_all(connection: socket.socket, folder: str) -> None:
    buffer = memoryview(bytearray(LARGEST_BATCH + SIZE.size))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection, tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        while _is_filled(connection, buffer[: SIZE.size]):
            batch = buffer[: SIZE.unpack(buffer[: SIZE.size])[0]]
            assert _is_filled(connection, batch), "a connection ended in a batch"
            assert crc32c(batch[CRC_START:]) == int.from_bytes(batch[CRC_POSITION : CRC_POSITION + 4], "big"), "CRC"
            assert file.write(batch) == len(batch), "a short write"
            connection.sendall(b".")


def _is_filled(connection: socket.socket, room: memoryview) -> bool:
    """Whether so many bytes have come; False at the end of the connection."""
    while room:
        count = connection.recv_into(room, len(room), socket.MSG_WAITALL)
        if not count:
            return False
        room = room[count:]
    return True
