"""``raylog dump-log`` on files with known bytes: Kafka's lines, JSON, and damage that is named and exits with 1."""

from __future__ import annotations

import dataclasses
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raylog
import raylog.testing
from raylog.cli.main import app
from raylog.errors import ConfigError
from raylog.groups.consumer_protocol import (
    ConsumerProtocolAssignment,
    Subscription,
    encode_assignment,
    encode_subscription,
)
from raylog.groups.records import GroupKey, GroupRecord, GroupValue, MemberValue, OffsetKey, OffsetValue, encode_key
from raylog.groups.records import encode as encode_group_record
from raylog.log.disk_files import DiskFiles
from raylog.log.producers import ProducerStates
from raylog.metadata.records import BrokerRegistered, ClusterFormatted, DiskRegistered, encode_batch
from raylog.raft.messages import Entry, EntryKind, HardState, QuorumWrite, Snapshot, encode_voters
from raylog.raft.metadata_log import MetadataLog
from raylog.records.batch import BatchView, stamp, write_crc
from raylog.records.codec import encode
from raylog.records.compression import Compression
from raylog.records.control import Marker, control_batch
from raylog.transactions.records import (
    Participant,
    Participation,
    TransactionKey,
    TransactionRecord,
    TransactionState,
    TransactionValue,
)
from raylog.transactions.records import encode as encode_transaction
from raylog.types import TopicPartition

runner = CliRunner()


def run(*arguments: object) -> Any:
    return runner.invoke(app, ["dump-log", *map(str, arguments)])


def stamped(batch: bytes, base_offset: int, leader_epoch: int) -> bytes:
    buffer = bytearray(batch)
    stamp(buffer, base_offset, leader_epoch)
    return bytes(buffer)


def two_batches() -> bytes:
    first = encode(
        [(1000, b"k1", b"v1", [("h", b"x"), ("i", None)]), (1005, None, b"\xff\xfe", [])],
        producer_id=7,
        producer_epoch=1,
        base_sequence=4,
    )
    second = encode([(2000, b"k3" * 200, None, [])], compression=Compression.GZIP)
    return stamped(first, 100, 3) + stamped(second, 102, 4)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000100.log"
    path.write_bytes(two_batches())
    return path


def test_batches_are_printed_as_kafkas_tool_prints_them(log_file: Path) -> None:
    first, second = BatchView(two_batches()), BatchView(two_batches(), BatchView(two_batches()).size)
    result = run(log_file)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"Dumping {log_file}",
        "Log starting offset: 100",
        "baseOffset: 100 lastOffset: 101 count: 2 baseSequence: 4 lastSequence: 5 producerId: 7 producerEpoch: 1 "
        "partitionLeaderEpoch: 3 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty position: 0 "
        f"CreateTime: 1005 size: {first.size} magic: 2 compresscodec: none crc: {first.crc} isvalid: true",
        "baseOffset: 102 lastOffset: 102 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1 "
        "partitionLeaderEpoch: 4 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty position: "
        f"{first.size} CreateTime: 2000 size: {second.size} magic: 2 compresscodec: gzip crc: {second.crc} isvalid: true",
    ]


def test_records_and_their_contents_are_printed_on_demand(log_file: Path) -> None:
    deep = [line for line in run(log_file, "--deep-iteration").stdout.splitlines() if line.startswith("| ")]
    assert deep == [
        "| offset: 100 CreateTime: 1000 keySize: 2 valueSize: 2 sequence: 4 headerKeys: [h,i]",
        "| offset: 101 CreateTime: 1005 keySize: -1 valueSize: 2 sequence: 5 headerKeys: []",
        "| offset: 102 CreateTime: 2000 keySize: 400 valueSize: -1 sequence: -1 headerKeys: []",
    ]
    printed = [line for line in run(log_file, "--print-data-log").stdout.splitlines() if line.startswith("| ")]
    assert printed[0].endswith("headerKeys: [h,i] key: k1 payload: v1")
    assert printed[1].endswith("headerKeys: [] payload: base64://4=")


def test_json_is_one_document_a_line(log_file: Path) -> None:
    documents = [json.loads(line) for line in run(log_file, "--json", "--print-data-log").stdout.splitlines()]
    assert [document.get("baseOffset") for document in documents] == [100, None, None, 102, None]
    assert documents[1]["key"] == "k1" and documents[1]["headerKeys"] == ["h", "i"]
    assert documents[2]["payloadBase64"] == "//4="
    assert all(document["file"] == str(log_file) for document in documents)


def test_a_control_batch_shows_its_marker(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(control_batch(Marker.COMMIT, producer_id=9, producer_epoch=2, coordinator_epoch=5, timestamp_ms=1))
    lines = run(path, "--deep-iteration").stdout.splitlines()
    assert "isTransactional: true isControl: true" in lines[2]
    assert lines[3].endswith("endTxnMarker: COMMIT coordinatorEpoch: 5")


def test_a_control_record_of_kafkas_raft_log_shows_its_type(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    marker = control_batch(Marker.ABORT, producer_id=9, producer_epoch=2, coordinator_epoch=5, timestamp_ms=1)
    batches = b""
    for number in (2, 9):
        data = bytearray(marker)
        data[data.index(b"\x08\x00\x00\x00\x00\x0c") + 4] = (
            number  # the end of the key, between the lengths of key and value
        )
        write_crc(data)
        batches += data
    path.write_bytes(batches)
    found = [
        line.split("headerKeys: [] ")[1]
        for line in run(path, "--deep-iteration").stdout.splitlines()[2:]
        if "|" in line
    ]
    assert found == ["controlType: LEADER_CHANGE(2)", "controlType: UNKNOWN(9)"]


# ------------------------------------------------------------------ __consumer_offsets


def offsets_log(folder: Path, *records: tuple[bytes | None, bytes | None]) -> Path:
    path = folder / "00000000000000000000.log"
    path.write_bytes(encode([(1_000, key, value, []) for key, value in records]))
    return path


def shown(path: Path, decoder: str = "--offsets-decoder") -> list[str]:
    result = run(path, decoder)
    assert result.exit_code == 0
    return [line.split("headerKeys: [] ")[1] for line in result.stdout.splitlines() if line.startswith("| ")]


def test_committed_offsets_are_decoded_as_kafkas_offsets_decoder_does(tmp_path: Path) -> None:
    key = OffsetKey("billing", "orders", 3)
    topic_id = uuid.UUID(int=5)
    values = [
        OffsetValue(42, 7, "by hand", 1_000),
        OffsetValue(43, -1, "", 1_001, expire_timestamp=9_000),
        OffsetValue(44, 8, "", 1_002, topic_id=topic_id),
        None,
    ]
    path = offsets_log(tmp_path, *(encode_group_record(GroupRecord(key, value)) for value in values))
    named = 'key: {"type":"1","data":{"group":"billing","topic":"orders","partition":3}} payload: '
    assert shown(path) == [
        named + '{"version":"3","data":{"offset":42,"leaderEpoch":7,"metadata":"by hand","commitTimestamp":1000}}',
        named + '{"version":"1","data":{"offset":43,"metadata":"","commitTimestamp":1001,"expireTimestamp":9000}}',
        named + '{"version":"4","data":{"offset":44,"leaderEpoch":8,"metadata":"","commitTimestamp":1002,'
        '"topicId":"AAAAAAAAAAAAAAAAAAAABQ"}}',
        named + "<DELETE>",
    ]
    documents = [json.loads(line) for line in run(path, "--offsets-decoder", "--json").stdout.splitlines()]
    assert documents[1]["key"]["data"] == {"group": "billing", "topic": "orders", "partition": 3}
    assert documents[1]["payload"]["data"]["offset"] == 42


def test_groups_are_decoded_with_what_consumers_say_to_each_other(tmp_path: Path) -> None:
    partitions = (TopicPartition("foo", 0), TopicPartition("foo", 2))
    subscription = encode_subscription(Subscription(("foo",), None, partitions[:1], 0, "rack"))
    assignment = encode_assignment(ConsumerProtocolAssignment(partitions))
    member = MemberValue("m", "instance", "client", "host", 1_000, 100, subscription, assignment)
    group = GroupValue("consumer", 10, "range", "m", 77, (member,))
    other = dataclasses.replace(
        group, protocol_type="connect", members=(dataclasses.replace(member, subscription=b"\xff"),)
    )
    broken = dataclasses.replace(group, members=(dataclasses.replace(member, subscription=b"\x00", assignment=b""),))
    records = (encode_group_record(GroupRecord(GroupKey("g"), value)) for value in (group, other, broken))
    of_consumers, of_connect, of_broken = shown(offsets_log(tmp_path, *records))
    assert of_consumers == (
        'key: {"type":"2","data":{"group":"g"}} payload: {"version":"3","data":{"protocolType":"consumer","generation":10,'
        '"protocol":"range","leader":"m","currentStateTimestamp":77,"members":[{"memberId":"m","groupInstanceId":"instance",'
        '"clientId":"client","clientHost":"host","rebalanceTimeout":1000,"sessionTimeout":100,"subscription":{"topics":["foo"],'
        '"userData":null,"ownedPartitions":[{"topic":"foo","partitions":[0]}],"generationId":0,"rackId":"rack"},'
        '"assignment":{"assignedPartitions":[{"topic":"foo","partitions":[0,2]}],"userData":null}}]}}'
    )
    assert '"subscription":"/w=="' in of_connect and '"subscription":"AA==","assignment":""' in of_broken


def test_what_is_no_offsets_record_is_skipped_by_name(tmp_path: Path) -> None:
    path = offsets_log(tmp_path, (b"\x00\x03x", b"y"), (None, b"y"), (encode_key(GroupKey("g")), b"\x00\x63"))
    unknown, keyless, newer = shown(path)
    assert unknown == "key: Unknown record type 3 at offset 0, skipping."
    assert keyless == "key: Error at offset 1, skipping. an offsets record without a key"
    assert newer.startswith("key: Error at offset 2, skipping. group metadata of version 99")


@pytest.mark.core
def test_the_offsets_that_a_cluster_has_written_are_decoded(tmp_path: Path) -> None:
    with raylog.testing.broker(folder=tmp_path, topics={"orders": 1}) as kafka:
        kafka.write("orders", b"a", b"b")
        with raylog.Cluster(kafka.address).consumer(group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["orders"])
            while not consumer.consume(timeout=20):
                pass
            consumer.commit()
    told = []
    for path in sorted(tmp_path.glob("**/__consumer_offsets-*/*.log")):
        told += [json.loads(line) for line in run(path, "--offsets-decoder", "--json").stdout.splitlines()]
    commits = [each["payload"]["data"] for each in told if each.get("key", {}).get("type") == "1"]
    groups = [each["payload"]["data"] for each in told if each.get("key", {}).get("type") == "2"]
    assert commits[-1]["offset"] == 2
    assert any(
        member["assignment"]["assignedPartitions"] == [{"topic": "orders", "partitions": [0]}]
        for group in groups
        for member in group["members"]
    )


# ------------------------------------------------------------------ __transaction_state


def test_transactions_are_decoded_as_kafkas_transaction_log_decoder_does(tmp_path: Path) -> None:
    """The sentences are Kafka 4.3's, but for what is wrong with the last two records, and for participants and label."""
    partitions = frozenset((TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 2)))
    ongoing = TransactionValue(
        7, 3, 60_000, TransactionState.ONGOING, partitions, 5, 4, previous_producer_id=7, client_version=2
    )
    empty = TransactionValue(7, 3, 60_000, TransactionState.EMPTY, last_update_timestamp=5)
    shared = dataclasses.replace(
        empty, state=TransactionState.COMPLETE_COMMIT, next_producer_id=9,
        participants=(Participant(8, 2, Participation.SPARE),), label="batch 7",
    )  # fmt: skip
    records = [
        encode_transaction(TransactionRecord(TransactionKey("pay"), each)) for each in (ongoing, empty, shared, None)
    ]
    key = records[0][0]
    path = offsets_log(tmp_path, *records, (b"\x00\x07x", b"y"), (key, b"\x00\x63"), (None, b"y"))
    named = 'key: {"type":"0","data":{"transactionalId":"pay"}} payload: '
    told = shown(path, "--transaction-log-decoder")
    assert told[0] == named + (
        '{"version":"1","data":{"producerId":7,"previousProducerId":7,"producerEpoch":3,"transactionTimeoutMs":60000,'
        '"transactionStatus":1,"transactionPartitions":[{"topic":"t","partitionIds":[0,1]},{"topic":"u","partitionIds":[2]}],'
        '"transactionLastUpdateTimestampMs":5,"transactionStartTimestampMs":4,"clientTransactionVersion":2}}'
    )
    assert told[1] == named + (
        '{"version":"1","data":{"producerId":7,"producerEpoch":3,"transactionTimeoutMs":60000,"transactionStatus":0,'
        '"transactionPartitions":null,"transactionLastUpdateTimestampMs":5,"transactionStartTimestampMs":-1}}'
    )
    assert '"nextProducerId":9' in told[2] and told[2].endswith(
        '"participants":[{"producerId":8,"producerEpoch":2,"part":"SPARE"}],"label":"batch 7"}}'
    )
    assert told[3] == named + "<DELETE>"
    assert told[4] == "key: Unknown record type 7 at offset 4, skipping."
    assert told[5].startswith("key: Error at offset 5, skipping. a transaction of version 99")
    assert told[6] == "key: Error at offset 6, skipping. a transaction's record without a key"


def test_a_decoder_is_refused_where_it_can_decode_nothing(log_file: Path, metadata_folder: Path) -> None:
    refused = run(log_file, "--cluster-metadata-decoder")
    assert isinstance(refused.exception, ConfigError) and "is no file of a controller" in str(refused.exception)
    assert run(metadata_folder, "--cluster-metadata-decoder").stdout == run(metadata_folder).stdout
    assert run(log_file, "--cluster-metadata-decoder", "--offsets-decoder").exit_code == 2
    assert run(log_file, "--transaction-log-decoder", "--offsets-decoder").exit_code == 2


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data + b"garbage", "7 invalid bytes at position"),
        (lambda data: data[:-1], "invalid bytes at position"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "fails its checksum"),
    ],
)
def test_damage_is_named_and_exits_with_1(log_file: Path, damage: Any, words: str) -> None:
    log_file.write_bytes(damage(log_file.read_bytes()))
    result = run(log_file, "--deep-iteration")
    assert result.exit_code == 1
    assert words in result.stdout.splitlines()[-1]
    assert "isvalid: true" in result.stdout


def test_an_index_ends_where_its_preallocated_zeros_begin(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(struct.pack(">iiii", 5, 4200, 9, 8400) + bytes(80))
    time_index = tmp_path / "00000000000000000100.timeindex"
    time_index.write_bytes(struct.pack(">qiqi", 1000, 5, 2000, 9) + bytes(120))
    assert run(index).stdout.splitlines()[1:] == ["offset: 105 position: 4200", "offset: 109 position: 8400"]
    assert run(time_index).stdout.splitlines()[1:] == ["timestamp: 1000 offset: 105", "timestamp: 2000 offset: 109"]


def test_an_empty_index_has_no_entries(tmp_path: Path) -> None:
    index = tmp_path / "00000000000000000100.index"
    index.write_bytes(bytes(80))
    assert run(index).stdout.splitlines() == [f"Dumping {index}"]


def test_a_producer_snapshot_is_listed(tmp_path: Path) -> None:
    states = ProducerStates()
    batch = BatchView(two_batches())
    states.note(batch, wall_ms=1005)
    path = tmp_path / "00000000000000000102.snapshot"
    path.write_bytes(states.encode_snapshot())
    assert run(path).stdout.splitlines()[1] == (
        "producerId: 7 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty lastTimestamp: 1005 "
        "firstSequence: 4 lastSequence: 5 lastOffset: 101 offsetDelta: 1 timestamp: 1005"
    )


def test_leader_epochs_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n3 100\n")
    assert run(path).stdout.splitlines()[1:] == ["epoch: 0 startOffset: 0", "epoch: 3 startOffset: 100"]
    path.write_text("0\n3\n0 0\n")
    result = run(path)
    assert result.exit_code == 1 and "1 entries where 3 are announced" in result.stdout


def test_a_folder_stands_for_its_files(log_file: Path) -> None:
    (log_file.parent / "leader-epoch-checkpoint").write_text("0\n1\n3 100\n")
    (log_file.parent / "replica.checkpoint").write_text("not for this tool")
    lines = run(log_file.parent).stdout.splitlines()
    assert [line for line in lines if line.startswith("Dumping")] == [
        f"Dumping {log_file}",
        f"Dumping {log_file.parent / 'leader-epoch-checkpoint'}",
    ]


def test_an_empty_log_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"")
    assert run(path).exit_code == 0


@pytest.fixture
def metadata_folder(tmp_path: Path) -> Path:
    """A controller's folder: a snapshot of two voters, then an election, a topic's creation and a change of voters."""
    folder = tmp_path / "__cluster_metadata-0"
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    state = encode_batch([ClusterFormatted("a-cluster")])
    log = MetadataLog.open(DiskFiles(), str(folder))
    disk = encode_batch([BrokerRegistered(0, "rack-a"), DiskRegistered(one, 0, "/data")])
    entries = (
        Entry(8, 3, EntryKind.LEADER, b""),
        Entry(9, 3, EntryKind.RECORDS, disk),
        Entry(10, 3, EntryKind.VOTERS, encode_voters((one,))),
    )
    log.store(QuorumWrite(1, HardState(3, two), Snapshot(7, 2, "a-cluster", (one, two), state), entries))
    log.close()
    return folder


def test_the_metadata_log_is_decoded(metadata_folder: Path) -> None:
    result = run(metadata_folder / "metadata.log")
    assert result.exit_code == 0
    size = len(encode_batch([BrokerRegistered(0, "rack-a"), DiskRegistered(uuid.UUID(int=1), 0, "/data")]))
    assert result.stdout.splitlines() == [
        f"Dumping {metadata_folder / 'metadata.log'}",
        "offset: 8 leaderEpoch: 3 kind: LEADER size: 0",
        f"offset: 9 leaderEpoch: 3 kind: RECORDS size: {size}",
        "| record: BrokerRegistered broker_id: 0 rack: rack-a",
        "| record: DiskRegistered directory_id: AAAAAAAAAAAAAAAAAAAAAQ broker_id: 0 path: /data",
        "offset: 10 leaderEpoch: 3 kind: VOTERS size: 17 voters: ['AAAAAAAAAAAAAAAAAAAAAQ']",
    ]


def test_a_controllers_folder_is_decoded_as_a_whole(metadata_folder: Path) -> None:
    found = [json.loads(line) for line in run(metadata_folder, "--json").stdout.splitlines()]
    by_file = {Path(each["file"]).name: each for each in found}
    assert by_file["quorum-state"]["leaderEpoch"] == 3
    assert by_file["quorum-state"]["votedFor"] == "AAAAAAAAAAAAAAAAAAAAAg"
    snapshots = [each for each in found if each["file"].endswith(".checkpoint")]
    assert (snapshots[0]["lastOffset"], snapshots[0]["lastEpoch"], len(snapshots[0]["voters"])) == (7, 2, 2)
    assert snapshots[1]["record"] == "ClusterFormatted" and snapshots[1]["cluster_id"] == "a-cluster"


def test_a_damaged_metadata_log_is_named(metadata_folder: Path) -> None:
    path = metadata_folder / "metadata.log"
    path.write_bytes(path.read_bytes() + b"RLME torn")
    result = run(path)
    assert result.exit_code == 1
    assert "Found 9 bytes at position" in result.stdout


GOLDEN = Path(__file__).resolve().parents[1] / "records" / "golden" / "message-sets.txt"


def written_by_kafka(folder: Path, *named: str) -> Path:
    """A segment of what Apache Kafka wrote in an old format."""
    found = {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in GOLDEN.read_text().splitlines()[1:]}
    path = folder / f"{100:020d}.log"
    path.write_bytes(b"".join(bytes.fromhex(found[name]) for name in named))
    return path


def test_messages_of_old_formats_are_shown_as_dump_log_segments_shows_them(tmp_path: Path) -> None:
    path = written_by_kafka(tmp_path, "0 none CreateTime")
    assert run(path).stdout.splitlines()[2:] == [
        "offset: 100 position: 0 NoTimestampType: -1 size: 77 magic: 0 compresscodec: none crc: 1468631715 isvalid: true",
        "offset: 101 position: 77 NoTimestampType: -1 size: 76 magic: 0 compresscodec: none crc: 1880829331 isvalid: true",
        "offset: 102 position: 153 NoTimestampType: -1 size: 27 magic: 0 compresscodec: none crc: 2424440054 isvalid: true",
        "offset: 107 position: 180 NoTimestampType: -1 size: 26 magic: 0 compresscodec: none crc: 3817498742 isvalid: true",
    ]
    path = written_by_kafka(tmp_path, "1 gzip CreateTime")
    assert run(path, "--deep-iteration", "--print-data-log").stdout.splitlines()[2:] == [
        "offset: 107 position: 0 CreateTime: 1529210278990 size: 149 magic: 1 compresscodec: gzip crc: 893151450 isvalid: true",
        "| offset: 100 CreateTime: 1529210278988 keySize: 1 valueSize: 50 "
        "key: k payload: the same value again and again and again and again",
        "| offset: 101 CreateTime: 1529210278990 keySize: -1 valueSize: 50 "
        "payload: the same value again and again and again and again",
        "| offset: 102 CreateTime: 1529210278989 keySize: 1 valueSize: -1 key: k",
        "| offset: 107 CreateTime: 1529210278988 keySize: 0 valueSize: 0 key:  payload: ",
    ]
    path = written_by_kafka(tmp_path, "1 none LogAppendTime", "1 snappy LogAppendTime")
    shown = run(path)
    assert shown.exit_code == 0 and shown.stdout.count("LogAppendTime: 1600000000000") == 5


@pytest.mark.parametrize(("cut", "reason"), [(-1, "invalid bytes at position 180"), (None, "CRC of a message")])
def test_damage_among_messages_of_old_formats_is_found(tmp_path: Path, cut: int | None, reason: str) -> None:
    path = written_by_kafka(tmp_path, "0 none CreateTime")
    data = bytearray(path.read_bytes()[:cut])
    if cut is None:
        data[-1] ^= 1
    path.write_bytes(data)
    result = run(path, "--deep-iteration")
    assert result.exit_code == 1 and reason in result.stdout
