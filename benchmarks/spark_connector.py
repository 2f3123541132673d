"""The jars of Spark's own kafka source, from Maven Central, kept beside those of Apache Kafka."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import tempfile
from pathlib import Path

from apache_kafka import PeerError

VERSION = "3.5.7"
_CACHE = Path(__file__).resolve().parent / ".cache"
_NEEDED = ("spark-sql-kafka-0-10", "spark-token-provider-kafka-0-10", "kafka-clients", "commons-pool2")
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>raylog.benchmarks</groupId>
  <artifactId>connector</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.12</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""


def jars() -> list[Path]:
    """The four jars that a Spark session needs besides its own, fetched on first use."""
    folder = _CACHE / f"spark-kafka-{VERSION}"
    maven = shutil.which("mvn")
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "connector.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            if maven is None:
                raise PeerError("Maven is missing: apt-get install maven")
            with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
                (Path(scratch) / "pom.xml").write_text(_POM)
                command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
                done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
                if done.returncode:
                    raise PeerError(
                        f"Maven could not fetch Spark's connector:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                    )
                (Path(scratch) / "libs").rename(folder)
    found = [jar for jar in sorted(folder.glob("*.jar")) if jar.name.startswith(_NEEDED)]
    assert len(found) == len(_NEEDED), f"{folder} holds {[jar.name for jar in found]}"
    return found
