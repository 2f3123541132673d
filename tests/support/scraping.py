"""What a scraper reads at a broker's ``/metrics``."""

from __future__ import annotations

import re
import urllib.request

from connect_worker import free_port
from raw_requests import eventually

from raylog.client.sync import AdminClient
from raylog.cluster import Cluster
from raylog.configs.metrics_configs import METRICS_LISTENER
from raylog.testing.in_process import InProcessCluster
from raylog.types import BROKER_SLOT, Endpoint, node_id

Scraped = dict[str, dict[tuple[str, ...], float]]
"""By name and the values of labels."""

_LINE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def open_metrics(running: InProcessCluster, brokers: int) -> dict[int, Endpoint]:
    """Have each broker show its metrics; where, by broker."""
    with AdminClient(running.address) as admin:
        admin.alter_configs(broker="all", set={METRICS_LISTENER: "127.0.0.1:0"})

    def found() -> dict[int, Endpoint] | None:
        at = {
            broker: running.launcher.servers[node_id(broker, BROKER_SLOT)].metrics.endpoint for broker in range(brokers)
        }
        return at if all(at.values()) else None

    at: dict[int, Endpoint] = eventually(found, "all brokers to show their metrics")
    return at


def metrics_of_processes(cluster: Cluster, brokers: int) -> dict[int, Endpoint]:
    """Where each broker of a cluster of real processes shows its metrics: a port for each."""
    at = {broker: Endpoint("127.0.0.1", free_port()) for broker in range(brokers)}
    with cluster.admin() as admin:
        for broker, endpoint in at.items():
            admin.alter_configs(broker=broker, set={METRICS_LISTENER: str(endpoint)})
    for endpoint in at.values():
        eventually(lambda endpoint=endpoint: scraped_if_there(endpoint), f"{endpoint} to show metrics")
    return at


def scraped_if_there(at: Endpoint) -> Scraped | None:
    """None: nobody answers there."""
    try:
        return scraped(at)
    except OSError:
        return None


def get(at: Endpoint, path: str = "/metrics", *, accept: str = "*/*", method: str = "GET") -> tuple[str, str]:
    """Content type and body. Raises HTTPError."""
    request = urllib.request.Request(f"http://{at}{path}", headers={"Accept": accept}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def parsed(text: str) -> Scraped:
    """Raises AssertionError for a line that is none of the format's."""
    found: Scraped = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        assert match is not None, line
        name, labels, value = match.groups()
        series = found.setdefault(name, {})
        key = tuple(text for _, text in _LABEL.findall(labels or ""))
        assert key not in series, f"{line}: a second time"
        series[key] = float(value)
    return found


def scraped(at: Endpoint) -> Scraped:
    return parsed(get(at)[1])


def summed(at: dict[int, Endpoint], name: str, *labels: str) -> float:
    """A series' sum over all brokers."""
    return sum(scraped(each).get(name, {}).get(labels, 0) for each in at.values())
