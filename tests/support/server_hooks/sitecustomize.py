"""Makes the disk and the network of server processes fail, and the processes halt, on command, for tests only.

The product holds no switch for it.

Python imports this module by its name at the start of every process that has this folder on its PYTHONPATH, as the workers
of a test's own Ray do. Where RAYLOG_TEST_FAULTS names a file, some modules of raylog are patched when they have been
imported:

- ``raylog.log.disk_files``: reads, writes and flushes below a disk that the file names fail with its error number; half of
  a write's bytes arrive, as on a disk that fills up.
- ``raylog.wire.framing``: what comes from a broker that is cut off from this one is not read, on existing connections and
  on new ones, at either end. Nobody sees an end of file, and what was sent arrives when the cut is over: a network that
  loses packets looks like that to a program, since TCP sends them again.
- some modules of moves (``move_halts``): a process that comes to the named step of a replica's move halts there.

The file is JSON, replaced as a whole, looked at every ``LOOK_S``, and at each step of a move::

    {"write_errors": {"<disk's folder>": 28}, "read_errors": {}, "cuts": [[1, 2]], "halt": null}
"""

import os

FAULTS = os.environ.get("RAYLOG_TEST_FAULTS")
LOOK_S = 0.02

if FAULTS:
    import importlib.abc
    import importlib.machinery
    import json
    import sys
    import time

    import move_halts

    class Orders:
        """What the file says, at most ``LOOK_S`` old."""

        def __init__(self):
            self.write_errors = {}
            self.read_errors = {}
            self.cuts = set()
            self.halt = None
            self._looked_at = 0.0
            self._stamp = None

        def look(self, *, now=False):
            moment = time.monotonic()
            if not now and moment - self._looked_at < LOOK_S:
                return self
            self._looked_at = moment
            try:
                stat = os.stat(FAULTS)
                stamp = (stat.st_mtime_ns, stat.st_ino)
                if stamp != self._stamp:
                    with open(FAULTS) as file:
                        read = json.load(file)
                    self.write_errors, self.read_errors = read["write_errors"], read["read_errors"]
                    self.cuts = {frozenset(pair) for pair in read["cuts"]}
                    self.halt = read["halt"]
                    self._stamp = stamp
            except OSError:
                pass  # no orders yet
            return self

    orders = Orders()
    listening = set()  # the ports of this process

    def fail(errors, path):
        for disk, number in errors.items():
            if path.startswith(disk + "/"):
                raise OSError(number, os.strerror(number), path)

    def patch_disks(module):
        kind, files = module.DiskFile, module.DiskFiles
        read_at, write_at, flush, write_file = kind.read_at, kind.write_at, kind.flush, files.write_file

        def failing_read(self, position, size, **options):
            fail(orders.look().read_errors, self.path)
            return read_at(self, position, size, **options)

        def failing_write(self, position, *buffers):
            errors = orders.look().write_errors
            if errors:
                try:
                    fail(errors, self.path)
                except OSError:
                    whole = b"".join(bytes(buffer) for buffer in buffers)
                    write_at(self, position, whole[: len(whole) // 2])
                    raise
            return write_at(self, position, *buffers)

        def failing_flush(self):
            fail(orders.look().write_errors, self.path)
            flush(self)

        def failing_write_file(self, path, data, *, flush=True):
            fail(orders.look().write_errors, path)
            write_file(self, path, data, flush=flush)

        kind.read_at, kind.write_at, kind.flush, files.write_file = (
            failing_read,
            failing_write,
            failing_flush,
            failing_write_file,
        )

    def patch_wire(module):
        import weakref

        framed = module.FramedProtocol
        made, alive, state = framed.connection_made, weakref.WeakSet(), {"looking": False, "cut": False}

        def own_broker():
            servers = sys.modules.get("raylog.server.spec")
            return getattr(servers, "test_broker", None)

        def other_broker(protocol):
            """The broker at the other end: as the handshake proved it, before that by the port that was dialled."""
            node = getattr(getattr(protocol, "peer", None), "node_id", -1)
            if node < 0 and protocol.test_dialled is None:
                protocol.test_dialled = -1  # the end that was dialled, or no server of raylog's
                own, other = (protocol.transport.get_extra_info(name) for name in ("sockname", "peername"))
                try:
                    if own[1] not in listening:
                        with open(f"{FAULTS}.port-{other[1]}") as file:
                            protocol.test_dialled = int(file.read())
                except (OSError, TypeError, ValueError):
                    pass
            return node >> 16 if node >= 0 else protocol.test_dialled

        def obey(protocol):
            cut = frozenset((own_broker(), other_broker(protocol))) in orders.cuts
            if cut:
                protocol.test_cut = True
                protocol.transport.pause_reading()
            elif protocol.test_cut:
                protocol.test_cut = False
                if not protocol._reading_held:
                    protocol.transport.resume_reading()

        def look(loop):
            if orders.look().cuts or state["cut"]:
                state["cut"] = bool(orders.cuts)
                for protocol in list(alive):
                    if protocol.transport is None or protocol.transport.is_closing():
                        alive.discard(protocol)
                    else:
                        obey(protocol)
            loop.call_later(LOOK_S, look, loop)

        def connection_made(self, transport):
            self.test_cut, self.test_dialled = False, None
            made(self, transport)
            alive.add(self)
            if orders.cuts:
                obey(self)
            if not state["looking"]:
                state["looking"] = True
                look(self.loop)

        framed.connection_made = connection_made

    def patch_server(module):
        """Says which broker listens where, for those who dial."""
        start = module.Server.start

        async def start_and_tell(self):
            endpoint = await start(self)
            listening.add(endpoint.port)
            broker = getattr(sys.modules.get("raylog.server.spec"), "test_broker", None)
            if broker is not None:
                path = f"{FAULTS}.port-{endpoint.port}"
                with open(path + ".new", "w") as file:
                    file.write(str(broker))
                os.replace(path + ".new", path)
            return endpoint

        module.Server.start = start_and_tell

    def patch_spec(module):
        """Which broker this process is of, and which node it is."""
        identity = module.ServerSpec.identity

        def noted(self, disk):
            module.test_broker, module.test_node = self.node_id >> 16, self.node_id
            return identity(self, disk)

        module.ServerSpec.identity = noted

    PATCHES = {
        "raylog.log.disk_files": patch_disks,
        "raylog.wire.framing": patch_wire,
        "raylog.wire.server": patch_server,
        "raylog.server.spec": patch_spec,
        **move_halts.patches(orders),
    }

    class Patching(importlib.abc.MetaPathFinder):
        """Finds those modules as everybody does, and patches them once they are loaded."""

        def find_spec(self, name, path, target=None):
            patch = PATCHES.get(name)
            if patch is None:
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            if spec is None or spec.loader is None:
                return None
            load = spec.loader.exec_module

            def load_and_patch(module):
                load(module)
                patch(module)

            spec.loader.exec_module = load_and_patch
            return spec

    sys.meta_path.insert(0, Patching())
