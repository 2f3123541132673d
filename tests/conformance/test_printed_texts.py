"""What `raylog up --secure` prints for Java works as it stands, with Kafka's own console tools and the file that it names."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
from kafka_peer import apache_kafka
from printed_texts import printed_texts

pytestmark = pytest.mark.conformance

CLASSES = {
    ("kafka-console-producer.sh", "3.9.1"): "kafka.tools.ConsoleProducer",
    ("kafka-console-producer.sh", "4.3.0"): "org.apache.kafka.tools.ConsoleProducer",
    ("kafka-console-consumer.sh", "3.9.1"): "org.apache.kafka.tools.consumer.ConsoleConsumer",
    ("kafka-console-consumer.sh", "4.3.0"): "org.apache.kafka.tools.consumer.ConsoleConsumer",
}
PATIENCE_S = 300


@pytest.mark.parametrize("version", ["3.9.1", "4.3.0"])
@pytest.mark.parametrize("is_mutual", [False, True], ids=["passwords", "certificates"])
def test_javas_console_tools_run_as_printed(tmp_path: Path, is_mutual: bool, version: str) -> None:
    kafka = apache_kafka()

    def run(line: str, *more: str, text: str | None = None) -> str:
        program, *options = shlex.split(line)
        command = kafka.java_command(CLASSES[program, version], *options, *more, version=version)
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with printed_texts(tmp_path, is_mutual=is_mutual) as printed:
        writing, reading = printed.of("Java").splitlines()
        run(writing, text="one\ntwo\n")
        found = run(reading, "--max-messages", "2", "--timeout-ms", str(PATIENCE_S * 1_000))
        assert sorted(found.splitlines()[-2:]) == ["one", "two"], "before them Kafka 4 may say that an option is old"
