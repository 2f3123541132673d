"""The metrics of one server process: what it says of itself and of its servers, whatever it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from raylog.kafka import table as apis
from raylog.metrics import table
from raylog.metrics.loop_delay import LoopDelay
from raylog.metrics.registry import Collector, Registry, Samples
from raylog.server.log_files import read_logs
from raylog.server.logger_levels import set_logger_levels
from raylog.server.process_usage import resident_bytes
from raylog.wire.private import COLLECT_METRICS, READ_LOGS, SET_LOGGER_LEVELS, name_of
from raylog.wire.private_watching import MetricsCollected
from raylog.wire.request import Handler, Request
from raylog.wire.server import Server
from raylog.wire.server_counts import ServerCounts, api_of_number


class ProcessMetrics:
    """The registry of one server process. ``servers`` are all that it has, the inside one first."""

    def __init__(self, node: int, servers: Callable[[], Sequence[Server]], *collectors: Collector) -> None:
        self._loop_delay = LoopDelay(lambda: servers()[0].is_over)
        self.registry = Registry(of_process(node, self._loop_delay), of_servers(servers), *collectors)

    def start(self) -> None:
        """In the running loop. It ends with the inside server."""
        self._loop_delay.start()

    def handlers(self) -> dict[int, Handler]:
        """How the process answers the Broker of its node, and who watches the cluster. Only the
        cluster's processes, and tools that know its secret, can ask.
        """

        def collect(request: Request) -> None:
            samples = self.registry.collect(request.body.series_max)
            request.reply(MetricsCollected(samples.plain()))

        return {COLLECT_METRICS: collect, READ_LOGS: read_logs, SET_LOGGER_LEVELS: set_logger_levels}


def of_process(node: int, loop_delay: LoopDelay) -> Collector:
    """CPU, memory and files of this process, and how late its loop is."""

    def collect(samples: Samples) -> None:
        samples.add(table.CPU_SECONDS, time.process_time(), str(node))
        samples.add(table.LOOP_DELAY, loop_delay.worst_s, str(node))
        memory = resident_bytes()
        if memory >= 0:
            samples.add(table.RESIDENT_MEMORY, memory, str(node))
        try:
            samples.add(table.OPEN_FILES, len(os.listdir("/proc/self/fd")), str(node))
        except OSError:
            pass  # there is no such folder on this system

    return collect


def of_servers(servers: Callable[[], Sequence[Server]]) -> Collector:
    """Requests and connections."""

    def collect(samples: Samples) -> None:
        for server in servers():
            counts = server.counts
            for metric, requests in (
                (table.REQUESTS, counts.requests),
                (table.INTERNAL_REQUESTS, counts.internal_requests),
            ):
                for number, count in requests.items():
                    api_key, version = api_of_number(number)
                    samples.add(metric, count, _api_name(api_key), str(version))
            _add_times(samples, counts)
            for port in server.ports:
                if port.endpoint is not None:
                    samples.add(table.CONNECTIONS, 0, port.listener)
            for connection in server.connections:
                samples.add(table.CONNECTIONS, 1, connection.listener)
            for metric, counted in (
                (table.CONNECTIONS_CREATED, counts.created),
                (table.SUCCESSFUL_AUTHENTICATIONS, counts.successful_authentications),
                (table.FAILED_AUTHENTICATIONS, counts.failed_authentications),
            ):
                for listener, count in counted.items():
                    samples.add(metric, count, listener)

    return collect


def _add_times(samples: Samples, counts: ServerCounts) -> None:
    for metric, kinds in (
        (table.TOTAL_TIME, (counts.at_once, counts.until_answered)),
        (table.LOCAL_TIME, (counts.at_once, counts.until_handled)),
        (table.THROTTLE_TIME, (counts.throttles,)),
    ):
        for times_by_key in kinds:
            for api_key, times in times_by_key.items():
                samples.add_times(metric, times, _api_name(api_key))


def _api_name(api_key: int) -> str:
    spec = apis.BY_KEY.get(api_key)
    return spec.name if spec is not None else name_of(api_key) or str(api_key)
