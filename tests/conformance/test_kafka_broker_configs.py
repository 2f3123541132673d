"""What raylog knows of the broker configs of Kafka 4.3, held against Kafka itself, which prints them all."""

from __future__ import annotations

import html
import re
import subprocess
from pathlib import Path

import pytest
from kafka_peer import apache_kafka

from raylog.configs.broker_configs import BROKER_CONFIGS

pytestmark = [pytest.mark.conformance, pytest.mark.slow]

NAMES = Path(__file__).parents[1] / "metadata" / "kafka_4_3_broker_configs.txt"
DIFFERENT = {
    "default.replication.factor": "as many as there are brokers, at most 3",
    "delegation.token.secret.key": "Kafka's is unset, raylog's is empty",
    "log.flush.interval.ms": "Kafka's is unset, and the scheduler's never",
    "log.message.timestamp.after.max.ms": "one hour since Kafka 4.0; raylog takes any timestamp, as Kafka 3 does",
    "log.retention.ms": "Kafka's is unset, and log.retention.hours is a week",
    "log.roll.jitter.ms": "Kafka's is unset, and log.roll.jitter.hours is 0",
    "log.roll.ms": "Kafka's is unset, and log.roll.hours is a week",
    "queued.max.request.bytes": "Kafka has no limit",
    "sasl.enabled.mechanisms": "GSSAPI, which raylog refuses by name",
}
"""Defaults that are raylog's own, or say the same in another way."""


def test_every_config_of_the_latest_kafka_is_known_with_its_type_and_default() -> None:
    kafka = apache_kafka()
    command = ["java", "-cp", f"{kafka.libs(kafka.LATEST)}/*", "kafka.server.KafkaConfig"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = {}
    for entry in re.split(r"(?=<h4>)", printed)[1:]:
        (name, *_) = re.findall(r'<a id="([^"]*)"', entry)
        rows = dict(re.findall(r"<tr><th>(.*?):</th><td>(.*?)</td></tr>", entry, re.DOTALL))
        found[name] = rows["Type"], html.unescape(rows["Default"])
    assert sorted(found) == NAMES.read_text().split()
    for name in BROKER_CONFIGS.keys() & found.keys():
        type, default = found[name]
        ours = BROKER_CONFIGS[name]
        assert type == ours.type.name.lower(), name
        same = re.sub(r" \(.*", "", default).removeprefix('""') == ours.default
        assert same != (name in DIFFERENT), f"{name}: Kafka has {default}, raylog {ours.default}"
