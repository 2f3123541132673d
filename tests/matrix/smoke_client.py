"""A plain install without Ray or Arrow: producer, group and admin against the test broker."""

from __future__ import annotations

import sys

import raylog
import raylog.testing

RECORDS = 1_000


def main() -> None:
    with raylog.testing.broker(topics={"smoke": 2}) as broker:
        cluster = raylog.connect(bootstrap_servers=broker.bootstrap)
        for codec in ("none", "gzip", "lz4", "snappy", "zstd"):
            with cluster.producer(compression_type=codec) as producer:
                producer.send_batch("smoke", [b"%d" % each for each in range(RECORDS // 5)]).result()
        with cluster.consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["smoke"])
            found = 0
            while found < RECORDS:
                records = consumer.consume(RECORDS, timeout=30)
                assert records, f"{found} of {RECORDS} records came back, then none for 30 s"
                found += len(records)
        with cluster.admin() as admin:
            assert admin.list_topics() == ["smoke"]
    heavy = {"ray", "pyarrow", "pyspark", "grpc", "numpy"} & sys.modules.keys()
    assert not heavy, f"a client has imported {heavy}"
    print(f"{RECORDS} records in five codecs, without Ray", file=sys.stderr)


if __name__ == "__main__":
    main()
