"""Word count on Spark: lines come in one topic, and for each word that a line has its new count goes to another.

Kafka's first example of a stream. The counts are Spark's state, kept in the checkpoint: run it again, and they go on where they were. The
output has the word as its key, so the topic read as a table is the counts, whatever was written twice after a failure.

python examples/word_count.py
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as f

import raylog

INPUT = "streams-plaintext-input"
OUTPUT = "streams-wordcount-output"
LINES = ("all streams lead to kafka", "hello kafka streams", "join kafka summit")
CHECKPOINT = "word-count-checkpoint"


def count_words(lines: Any) -> Any:
    """The words of all values and how often each was there, as Spark's ``update`` mode gives them: what changed."""
    words = lines.select(f.explode(f.split(f.lower(f.col("value").cast("string")), r"\W+")).alias("word"))
    return words.where("word <> ''").groupBy("word").count()


def start(spark: Any, cluster: Any, checkpoint: str) -> Any:
    """The query, running."""
    lines = raylog.spark.read_stream(
        spark, INPUT, cluster=cluster, checkpoint=checkpoint, columns=["value"], starting_offsets="earliest"
    )
    changes = count_words(lines).selectExpr("word AS key", "CAST(count AS STRING) AS value")
    return raylog.spark.write_stream(changes, OUTPUT, cluster=cluster, checkpoint=checkpoint, output_mode="update")


def answers(line: str, producer: raylog.Producer, consumer: raylog.Consumer) -> list[tuple[str, int]]:
    """Send a line, and wait for the counts that it changes."""
    producer.send(INPUT, line.encode()).result()
    found: list[tuple[str, int]] = []
    while not set(line.lower().split()) <= {word for word, _ in found}:
        found += [((record.key or b"").decode(), int(record.value or b"0")) for record in consumer.consume(timeout=1)]
    return found


def main() -> None:
    with raylog.init("raylog-data") as cluster:
        with cluster.admin() as admin:
            compacted = {"cleanup.policy": "compact"}  # keeps the last count of each word
            topics = [
                raylog.NewTopic(INPUT, partitions=1, replication_factor=3),
                raylog.NewTopic(OUTPUT, partitions=1, replication_factor=3, configs=compacted),
            ]
            admin.create_topics(topics, if_not_exists=True)
        spark = raylog.spark.init("word count", cluster=cluster, executor_memory="512m", driver_memory="512m")
        spark.conf.set("spark.sql.shuffle.partitions", 2)  # the parts of the state; Spark's default is for larger ones
        query = start(spark, cluster, CHECKPOINT)
        with cluster.producer() as producer, cluster.consumer(isolation_level="read_committed") as consumer:
            consumer.assign([raylog.TopicPartition(OUTPUT, 0)])
            consumer.seek_to_end()
            for line in LINES:
                print(f"> {line}")
                for word, count in answers(line, producer, consumer):
                    print(f"{word}\t{count}")
        query.processAllAvailable()  # a batch that is stopped before its end is aborted, and repeated by the next run
        query.stop()
        print("the output as a table:")
        table = raylog.spark.table(spark, OUTPUT, cluster=cluster, isolation_level="read_committed")
        table.selectExpr("CAST(key AS STRING) AS word", "CAST(CAST(value AS STRING) AS INT) AS count").sort(
            "word"
        ).show()
        raylog.spark.stop()


if __name__ == "__main__":
    main()
