"""Halts a server process at a named step of a replica's move, for tests only; part of ``sitecustomize``.

Each step is a place in the product's code, before or after a call that is named in ``patches``. Whoever comes there while the
file of orders says so, for that replica, writes its pid and holds its thread until the order is withdrawn. One process is halted by one
order: the first that comes.
"""

import os
import sys
import time

HALTED_S = 60.0  # at most: a test that has died withdraws nothing
LOOK_S = 0.005


class Halts:
    """``orders.look`` reads the file; its ``halt`` is the order, or None."""

    def __init__(self, orders):
        self._orders = orders

    def at(self, step, topic_id, partition):
        """Hold this thread if it is wanted here."""
        halt = self._orders.look(now=True).halt
        if halt is None or halt["step"] != step:
            return
        if (halt["topic_id"], halt["partition"]) != (topic_id.hex, partition):
            return
        try:
            with open(halt["halted"], "x") as file:
                file.write(f"{os.getpid()}\n")
        except FileExistsError:
            return
        until = time.monotonic() + HALTED_S
        while self._orders.look(now=True).halt == halt and time.monotonic() < until:
            time.sleep(LOOK_S)

    def order(self):
        return self._orders.look(now=True).halt

    def is_at(self, actor):
        """Whether this process is the order's ``source`` or ``to``."""
        halt = self.order()
        return halt is not None and getattr(sys.modules.get("raylog.server.spec"), "test_node", None) == halt[actor]


def patches(orders):
    """By module, what is done to it when it is imported."""
    halts = Halts(orders)

    def patch_decisions(module):
        kind = module.PartitionDecisions
        move, alter, opened, returned = kind.move, kind.alter, kind.opened, kind._returned

        def move_and_halt(self, id, slot, node_id, now_ms):
            move(self, id, slot, node_id, now_ms)
            halts.at("decided", id.topic_id, id.partition)

        def halt_and_alter(self, session, request, now_ms):
            halt = halts.order()
            latest = self._ledger.latest.topics.get(request.topic_id)
            state = latest.partitions.get(request.partition) if latest is not None else None
            if halt is not None and state is not None:
                asked = {broker for broker, _ in request.isr}
                if halt["broker"] in asked and halt["broker"] not in state.isr:
                    halts.at("rejoining", request.topic_id, request.partition)
            return alter(self, session, request, now_ms)

        def open_and_halt(self, session, status, now_ms):
            opened(self, session, status, now_ms)
            halt = halts.order()
            if halt is not None and session.node_id == halt["to"]:
                halts.at("reported", status.topic_id, status.partition)

        def return_and_halt(self, topic, id, state, candidates):
            after = returned(self, topic, id, state, candidates)
            if after.leader != state.leader:
                halts.at("returning", id.topic_id, id.partition)
            return after

        kind.move, kind.alter, kind.opened, kind._returned = (
            move_and_halt,
            halt_and_alter,
            open_and_halt,
            return_and_halt,
        )

    def patch_announcements(module):
        kind = module.Announcements
        release = kind.release

        def halt_and_release(self, session, id):
            halts.at("recorded", id.topic_id, id.partition)
            return release(self, session, id)

        kind.release = halt_and_release

    def patch_host(module):
        kind = module.ReplicaHost
        assign, release = kind._assign, kind._release

        def assign_and_halt(self, assignment, now_ms):
            id = assignment.id
            if halts.is_at("to") and id not in self.replicas:
                halts.at("assigned", *id)
            assign(self, assignment, now_ms)
            replica = self.replicas.get(id)
            if replica is not None and replica.leader is not None and not halts.is_at("source"):
                halts.at("led elsewhere", *id)

        def halt_and_release(self, order):
            halts.at("told to release", order.topic_id, order.partition)
            release(self, order)

        kind._assign, kind._release = assign_and_halt, halt_and_release

    def patch_log_work(module):
        open_log, close = module.open_log, module.close

        def halt_and_open(files, disk, assignment, **options):
            if not halts.is_at("to"):
                return open_log(files, disk, assignment, **options)
            halts.at("opening", assignment.topic_id, assignment.partition)
            event = open_log(files, disk, assignment, **options)
            if event.log is not None:
                halts.at("opened", assignment.topic_id, assignment.partition)
            return event

        def close_and_halt(effect):
            event = close(effect)
            if effect.reports:
                halts.at("closed", *effect.id)
            return event

        module.open_log, module.close = halt_and_open, close_and_halt

    return {
        "raylog.metadata.partitions.partition_decisions": patch_decisions,
        "raylog.metadata.partitions.announcements": patch_announcements,
        "raylog.replication.host": patch_host,
        "raylog.server.log_work": patch_log_work,
    }
