"""Handles: pickled, dropped, forked, used inside running loops and from many threads; and the coroutine faces."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
from typing import Any

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode
from raw_requests import eventually
from scripted_cluster import ScriptedCluster

import raylog
from raylog.client.admin.admin import AsyncAdminClient
from raylog.client.consumer.consumer import AsyncConsumer
from raylog.client.links import address as address_module
from raylog.client.links.address import ClusterAddress
from raylog.client.producer.producer import AsyncProducer
from raylog.client.sync import AdminClient, Consumer, Producer
from raylog.cluster import Cluster
from raylog.errors import BufferFullError, ClosedError, ConfigError, kafka_error
from raylog.types import Endpoint

pytestmark = pytest.mark.core


def test_an_address_pickles_and_never_shows_its_secret() -> None:
    address = ClusterAddress("c", "ns", "id", (Endpoint("h", 1),), b"hunter2")
    assert pickle.loads(pickle.dumps(address)) == address
    assert "hunter2" not in repr(address)
    with pytest.raises(ConfigError, match=r"raylog\.connect"):
        ClusterAddress("c", "ns", "id", (), b"")


@pytest.mark.parametrize("kind", [Producer, Consumer, AdminClient, AsyncProducer, AsyncConsumer, Cluster])
def test_a_handle_that_another_version_has_pickled_is_refused_by_name(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = kind(ClusterAddress("c", "ns", "id", (Endpoint("h", 1),), b""))
    monkeypatch.setattr(address_module, "VERSION", "0.0.9")
    pickled = pickle.dumps(handle)
    monkeypatch.undo()
    message = f"pickled by raylog 0.0.9, and this process has {raylog.__version__}: install the same version"
    with pytest.raises(ConfigError, match=message):
        pickle.loads(pickled)


def test_every_handle_pickles_before_and_after_use(scripted: Any) -> None:
    address = scripted().address
    producer = Producer(address, {"linger.ms": 1}, acks="all")
    producer.send("t", b"0").result(25)
    other = pickle.loads(pickle.dumps(producer))
    other.send("t", b"1").result(25)
    assert other._config == producer._config
    consumer = Consumer(address, auto_offset_reset="earliest")
    consumer.assign([("t", 0)])
    first = consumer.poll(25)
    assert first is not None and first.value == b"0"
    twin = pickle.loads(pickle.dumps(consumer))
    second = twin.poll(25)
    assert second is not None and second.value == b"1"
    admin = pickle.loads(pickle.dumps(AdminClient(address)))
    assert admin.list_topics() == ["t"]
    for handle in (producer, other, consumer, twin, admin):
        handle.close()
        handle.close()
    for async_handle in (AsyncProducer(address), AsyncConsumer(address), AsyncAdminClient(address)):
        assert type(pickle.loads(pickle.dumps(async_handle))) is type(async_handle)


def test_deliveries_pickle_once_they_are_finished(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, linger_ms=10_000) as producer:
        delivery = producer.send("t", b"0")
        with pytest.raises(TypeError, match="can be pickled only when it has finished"):
            pickle.dumps(delivery)
        producer.flush()
        assert pickle.loads(pickle.dumps(delivery)).result() == delivery.result()
        cluster.refuse_produce(ErrorCode.invalid_record)
        failed = producer.send("t", b"1")
        producer.flush()
        with pytest.raises(kafka_error(ErrorCode.invalid_record)):
            pickle.loads(pickle.dumps(failed)).result()
        assert pickle.loads(pickle.dumps(producer.send_batch("t", [b"2"]).result())).count == 1


def test_a_dropped_producer_still_delivers(scripted: Any) -> None:
    cluster = scripted()
    producer = Producer(cluster.address, linger_ms=10_000)
    producer.send("t", b"0")
    del producer
    gc.collect()
    eventually(lambda: cluster.values() == [b"0"], "what it held is delivered")


def test_blocking_handles_work_inside_a_running_loop_as_in_a_notebook(scripted: Any) -> None:
    cluster = scripted()

    async def cell() -> None:
        with Producer(cluster.address) as producer:
            assert producer.send("t", b"0").result(25).offset == 0
            delivery = producer.send("t", b"1")
            assert (await delivery).offset == 1  # a blocking producer's delivery awaited in the notebook's loop
            assert (await producer.send_batch("t", [b"2"])).offsets() == [(0, 2)]

    asyncio.run(cell())


def test_a_blocking_call_inside_a_callback_is_refused_instead_of_hanging(scripted: Any) -> None:
    cluster = scripted()
    caught: list[BaseException] = []
    with Producer(cluster.address, buffer_memory=100) as producer:

        def callback(metadata: Any, error: Any) -> None:
            try:
                producer.flush()
                producer.send("t", bytes(40))
                producer.send("t", bytes(40))
                producer.send("t", bytes(40))
            except BaseException as raised:
                caught.append(raised)

        producer.send("t", b"0", on_delivery=callback)
        producer.flush(60)
    assert len(caught) == 1 and isinstance(caught[0], (ClosedError, BufferFullError))


def test_many_threads_share_a_producer_and_each_keeps_its_order(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, buffer_memory=20_000, batch_size=2_000) as producer:

        def work(name: int) -> None:
            for number in range(300):
                if number % 50 == 0:
                    producer.send_batch("t", [b"%d/%d" % (name, number)])
                else:
                    producer.send("t", b"%d/%d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    pairs = [tuple(map(int, value.split(b"/"))) for value in cluster.values() if value is not None]
    for name in range(4):
        assert [number for who, number in pairs if who == name] == list(range(300))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_connects_anew_and_sends_nothing_of_its_parents(scripted: Any) -> None:
    cluster = scripted()
    producer = Producer(cluster.address, linger_ms=500)
    producer.send("t", b"parent").result(25)
    waiting = producer.send("t", b"parent's own")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        verdict = b"failed"
        try:
            producer.send("t", b"child").result(25)
            producer.close()
            verdict = b"sent"
        finally:
            os.write(writer, verdict)
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read() == b"sent"
    os.waitpid(child, 0)
    waiting.result(25)
    producer.close()
    assert sorted(value for value in cluster.values() if value) == [b"child", b"parent", b"parent's own"]


@pytest.mark.parametrize("uvloop", [False, True])
def test_the_coroutine_faces_do_the_same(scripted: Any, uvloop: bool) -> None:
    cluster: ScriptedCluster = scripted(topics={"t": 2})

    async def work() -> None:
        async with AsyncProducer(cluster.address, buffer_memory=3_000) as producer:
            assert (await producer.send_and_wait("t", b"0", partition=0)).offset == 0
            deliveries = [
                await producer.send("t", bytes(900), partition=1) for _ in range(20)
            ]  # waits for room on the way
            assert [(await delivery).offset for delivery in deliveries] == list(range(20))
            result = await (await producer.send_batch("t", [b"1", b"2"], partition=0))
            assert result.offsets() == [(0, 1), (0, 2)]
            table = pa.table({"value": ["3"], "key": ["k"], "partition": [0]})
            assert (await (await producer.send_batch("t", table))).offsets() == [(0, 3)]
            assert await producer.flush() == 0 and await producer.partitions_for("t") == 2
            with pytest.raises(ConfigError, match="no column 'value'"):
                await producer.send_arrow("t", pa.table({"x": [b"1"]}))
        with pytest.raises(ClosedError):
            await producer.send("t", b"")
        async with AsyncConsumer(cluster.address, auto_offset_reset="earliest") as consumer:
            consumer.assign([("t", 0)])
            seen = []
            async for record in consumer:
                seen.append((record.value, record.key))
                if len(seen) == 4:
                    break
            assert seen == [(b"0", None), (b"1", None), (b"2", None), (b"3", b"k")]
            assert await consumer.position(("t", 0)) == 4 and await consumer.poll(0.05) is None
            consumer.seek_to_beginning()
            assert (await consumer.poll_batch(25)).column("value").to_pylist()[:1] == [b"0"]
            assert await consumer.consume(timeout=0.2) is not None
            assert await consumer.end_offsets([("t", 0)]) == {("t", 0): 4}
        async with AsyncAdminClient(cluster.address) as admin:
            assert await admin.list_topics() == ["t"]
            assert (await admin.list_offsets({("t", 1): "latest"}))[("t", 1)].offset == 20  # type: ignore[index]

    if uvloop:
        import uvloop as module

        with asyncio.Runner(loop_factory=module.new_event_loop) as runner:
            runner.run(work())
    else:
        asyncio.run(work())


def test_a_full_buffer_blocks_coroutines_too_and_a_cancelled_one_holds_nothing(scripted: Any) -> None:
    cluster = scripted()
    held: list[Any] = []
    cluster.fail_next(0, lambda cluster, request: held.append(request) or True)

    async def work() -> None:
        async with AsyncProducer(cluster.address, buffer_memory=1000, batch_size=1) as producer:
            await producer.send("t", bytes(900))
            assert producer._core is not None
            producer._core.config = producer._core.config.model_copy(
                update={"max_block_ms": 100}
            )  # metadata may take longer
            with pytest.raises(BufferFullError, match=r"max\.block\.ms=100"):
                await producer.send("t", bytes(900))
            producer._core.config = producer._core.config.model_copy(update={"max_block_ms": 60_000})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.03):
                    await producer.send("t", bytes(900))
            while not held:
                await asyncio.sleep(0.001)
            cluster.loop.call_soon_threadsafe(cluster._produce, held[0])
            await producer.flush()
            assert producer._core.memory.used_bytes == 0

    asyncio.run(work())


def test_idle_connections_are_closed_and_opened_again(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, connections_max_idle_ms=50) as producer:
        producer.send("t", b"0").result(25)
        eventually(lambda: cluster.call(lambda: not cluster.servers[0].connections), "the idle connection is closed")
        assert producer.send("t", b"1").result(25).offset == 1


def test_metadata_are_refreshed_and_forgotten_in_time(scripted: Any) -> None:
    cluster = scripted()
    with Producer(cluster.address, metadata_max_age_ms=100, metadata_max_idle_ms=5_000) as producer:
        producer.send("t", b"0").result(25)

        def asked() -> int:
            return sum(type(body).__name__ == "MetadataRequest" for body in list(cluster.requests))

        before = asked()
        eventually(lambda: asked() >= before + 2, "metadata are asked for again, and again")
        assert producer._live is not None
        metadata = producer._live.metadata
        view = metadata.cached("t")
        assert view is not None
        view.used = False
        view.used_at -= 6
        eventually(lambda: metadata.cached("t") is None, "an idle topic is forgotten")
        assert producer.send("t", b"1").result(25).offset == 1
