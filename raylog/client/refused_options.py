"""Kafka's client options that raylog's own link refuses, each with the reason a user reads.

A trailing ``*`` stands for every option that begins so. An option leaves this table when it becomes
honoured.
"""

from __future__ import annotations

from collections.abc import Mapping

_NEW_PROTOCOL = "groups speak the classic protocol; that of KIP-848 is not there yet"
_OF_CONNECT = "give it to raylog.connect(bootstrap_servers=…), whose clients all have it"
_NO_RACK = "it says which replica a consumer reads; producers and admin clients ask leaders"
_NO_JMX = "there is no JMX reporter; clients are asked for their figures directly"

_EVERYWHERE: Mapping[str, str] = {
    "bootstrap.servers": "give it to raylog.connect(bootstrap_servers=…), which returns a cluster with producers and consumers",
    "bootstrap.controllers": "a handle gets its address from raylog.connect() or a ClusterAddress",
    "client.dns.lookup": "servers announce addresses, not names, on the inside link",
    "security.protocol": _OF_CONNECT,
    "security.providers": _OF_CONNECT,
    "sasl.*": _OF_CONNECT,
    "ssl.*": _OF_CONNECT,
    "metric.reporters": _NO_JMX,
    "metrics.num.samples": _NO_JMX,
    "metrics.sample.window.ms": _NO_JMX,
    "metrics.recording.level": _NO_JMX,
    "auto.include.jmx.reporter": _NO_JMX,
    "enable.metrics.push": _NO_JMX,
    "config.providers": "values are Python objects here; read the secret store in your own code",
}

PRODUCER_REFUSED: Mapping[str, str] = {
    **_EVERYWHERE,
    "client.rack": _NO_RACK,
    "compression.gzip.level": "compression runs at the codec's fast level",
    "compression.lz4.level": "compression runs at the codec's fast level",
    "compression.zstd.level": "compression runs at the codec's fast level",
}

CONSUMER_REFUSED: Mapping[str, str] = {
    **_EVERYWHERE,
    "group.remote.assignor": _NEW_PROTOCOL,
    "internal.leave.group.on.close": "it is Kafka Streams' own: dynamic members leave on close, static ones never do",
}

ADMIN_REFUSED: Mapping[str, str] = {**_EVERYWHERE, "client.rack": _NO_RACK}

FOREIGN_NAMES: Mapping[str, str] = {
    "queue.buffering.max.ms": "linger.ms",
    "queue.buffering.max.kbytes": "buffer.memory",
    "batch.bytes": "batch.size",
    "max.batch.size": "batch.size",
    "buffer.bytes": "buffer.memory",
    "compression": "compression.type",
    "compression.codec": "compression.type",
    "message.timeout.ms": "delivery.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "message.max.bytes": "max.request.size",
    "request.required.acks": "acks",
    "message.send.max.retries": "retries",
    "partitioner": "partitioner.class",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "isolation": "isolation.level",
    "offset.reset": "auto.offset.reset",
    "interceptors": "interceptor.classes",
}
"""What other clients call an option."""
