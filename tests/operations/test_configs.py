"""``raylog configs`` against real servers, and what the servers make of what it sets."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from raylog.cli.configs import parse_changes
from raylog.client.admin.admin import ConfigSource, ConfigType
from raylog.client.sync import Producer, call
from raylog.configs.broker_configs import BROKER_CONFIGS, FIXED_CONFIGS
from raylog.configs.client_metrics_configs import CLIENT_METRICS_CONFIGS
from raylog.errors import ConfigError, kafka_error
from raylog.kafka import table
from raylog.server.apis.entities import module_of, request_class

pytestmark = pytest.mark.core

TOPIC = ("--entity-type", "topics", "--entity-name")
BROKER = ("--entity-type", "brokers", "--entity-name")
ALL = ("--entity-type", "brokers", "--entity-default")


def test_a_topics_configs_are_set_shown_and_deleted_in_the_words_of_kafka_configs(operator, raylog):
    topic = operator.new_topic((1, 2))
    done = (0, f"Completed updating config for topic {topic}.\n")
    assert raylog("configs", "alter", *TOPIC, topic, "--add-config", "retention.ms=1000,flush.ms=[5]") == done
    code, text = raylog("configs", "describe", *TOPIC, topic)
    assert code == 0
    assert text.splitlines() == [
        f"Dynamic configs for topic {topic} are:",
        "  flush.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:flush.ms=5, "
        "DEFAULT_CONFIG:log.flush.interval.ms=9223372036854775807}",
        "  retention.ms=1000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=1000, "
        "DEFAULT_CONFIG:log.retention.ms=604800000}",
    ]
    assert raylog("configs", "alter", *TOPIC, topic, "--delete-config", "retention.ms,flush.ms") == done
    code, (document,) = raylog("configs", "describe", *TOPIC, topic, "--json")
    assert (code, document["entity_name"], document["configs"]) == (0, topic, [])
    _, (document,) = raylog("configs", "describe", *TOPIC, topic, "--all", "--json")
    assert len(document["configs"]) == 32 and {each["source"] for each in document["configs"]} == {"DEFAULT_CONFIG"}


def is_taken(producer: Producer, topic: str) -> bool:
    """Whether the topic's log takes a record of 5,000 bytes."""
    try:
        producer.send(topic, bytes(5_000)).result(60)
    except kafka_error(ErrorCode.message_too_large):
        return False
    return True


def test_what_is_set_for_all_brokers_holds_in_the_logs_without_a_restart(operator, raylog):
    topic = operator.new_topic((1, 2))
    with Producer(operator.running.address) as producer:
        assert is_taken(producer, topic)
        done = (0, "Completed updating default config for brokers in the cluster.\n")
        assert raylog("configs", "alter", *ALL, "--add-config", "message.max.bytes=1000") == done
        try:
            assert "message.max.bytes=1000" in raylog("configs", "describe", *ALL)[1]
            entry = operator.admin.describe_configs(topic)["max.message.bytes"]
            assert (entry.value, entry.source) == ("1000", ConfigSource.DYNAMIC_DEFAULT_BROKER)
            assert (entry.type, entry.synonyms[-1].value) == (ConfigType.INT, "1048588")
            operator.until(lambda: not is_taken(producer, topic))
            assert raylog("configs", "alter", *TOPIC, topic, "--add-config", "max.message.bytes=9000")[0] == 0
            operator.until(lambda: is_taken(producer, topic))
        finally:
            assert raylog("configs", "alter", *ALL, "--delete-config", "message.max.bytes") == done


def test_a_broker_shows_what_is_its_own_and_all_of_them_are_listed(operator, raylog):
    said = raylog("configs", "alter", *BROKER, "2", "--add-config", "log.retention.ms=7000", "--json")
    assert said == (
        0,
        {"entity_type": "brokers", "entity_name": "2", "set": {"log.retention.ms": "7000"}, "deleted": []},
    )
    try:
        _, text = raylog("configs", "describe", "--entity-type", "brokers")
        assert [line for line in text.splitlines() if not line.startswith(" ")] == [
            *(f"Dynamic configs for broker {broker} are:" for broker in range(4)),
            "Default configs for brokers in the cluster are:",
        ]
        assert text.count("log.retention.ms=7000 sensitive=false") == 1
        _, text = raylog("configs", "describe", *BROKER, "2", "--all")
        assert "  broker.id=2 sensitive=false synonyms={STATIC_BROKER_CONFIG:broker.id=2, " in text
        assert f"  advertised.listeners=PLAINTEXT://{operator.running.bootstrap_servers().split(',')[2]} " in text
    finally:
        assert raylog("configs", "alter", *BROKER, "2", "--delete-config", "log.retention.ms")[0] == 0
    assert raylog("configs", "describe", *BROKER, "2")[1] == "Dynamic configs for broker 2 are:\n"


def test_what_is_refused_says_why_and_changes_nothing(operator, raylog):
    topic = operator.new_topic((1, 2))
    with pytest.raises(kafka_error(ErrorCode.invalid_config), match=r"did you mean 'retention\.ms'"):
        raylog("configs", "alter", *TOPIC, topic, "--add-config", "flush.ms=5,retention.msec=1")
    assert raylog("configs", "describe", *TOPIC, topic)[1] == f"Dynamic configs for topic {topic} are:\n"
    with pytest.raises(kafka_error(ErrorCode.invalid_config), match=r"num\.io\.threads is refused: "):
        raylog("configs", "alter", *BROKER, "1", "--add-config", "num.io.threads=8")
    with pytest.raises(kafka_error(ErrorCode.unknown_topic_or_partition)):
        raylog("configs", "describe", *TOPIC, "nowhere")


@pytest.mark.parametrize(
    "arguments",
    [
        ("alter", "--entity-type", "topics", "--add-config", "a=1"),
        ("alter", *TOPIC, "t"),
        ("alter", *ALL, "--entity-name", "1", "--add-config", "a=1"),
        ("describe", "--entity-type", "topics", "--entity-default"),
        ("describe", *BROKER, "one"),
        ("describe", "--entity-type", "users"),
    ],
)
def test_a_command_that_does_not_say_what_it_means_is_used_wrongly(raylog, arguments):
    assert raylog("configs", *arguments)[0] == 2


def test_values_with_commas_stand_in_brackets():
    assert parse_changes(["a=1,b=[2,3] ,c=", "d=x=y"]) == {"a": "1", "b": "2,3", "c": "", "d": "x=y"}
    for text in ("a", "=1", "a=1,a=2", "a=1,b"):
        with pytest.raises(ConfigError):
            parse_changes([text])


@pytest.mark.parametrize("version", range(3))
def test_a_replacement_travels_in_every_version(operator, version):
    topic = operator.new_topic((1, 2), flush_ms="9")
    cls = request_class(table.ALTER_CONFIGS, version)
    module = module_of(cls)
    change = (module.AlterableConfig(name="retention.ms", value="7000"),)
    resource = module.AlterConfigsResource(resource_type=2, resource_name=topic, configs=change)
    for validate_only in (True, False):
        reply = call(operator.running.address, cls(resources=(resource,), validate_only=validate_only))
        assert reply.responses[0].error_code is ErrorCode.none
        found = {key: entry.value for key, entry in operator.admin.describe_configs(topic).items() if entry.source == 1}
        assert found == ({"flush.ms": "9"} if validate_only else {"retention.ms": "7000"})


@pytest.mark.parametrize("version", range(1, 5))
def test_a_description_travels_in_every_version(operator, version):
    topic = operator.new_topic((1, 2), flush_ms="9")
    cls = request_class(table.DESCRIBE_CONFIGS, version)
    module = module_of(cls)
    resources = [
        module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name, keys in (
            (2, topic, ("flush.ms",)),
            (4, "1", ()),
            (4, "", None),
            (16, "m", None),
            (32, "g", None),
            (8, "1", None),  # a Broker answers for its loggers, no controller
            (64, "x", None),
        )
    ]
    extra = {"include_documentation": True} if version >= 3 else {}
    reply = call(operator.running.address, cls(resources=tuple(resources), include_synonyms=True, **extra))
    assert [result.error_code for result in reply.results] == [ErrorCode.none] * 5 + [ErrorCode.invalid_request] * 2
    assert [len(result.configs) for result in reply.results[3:]] == [len(CLIENT_METRICS_CONFIGS), 0, 0, 0]
    (entry,) = reply.results[0].configs
    assert (entry.name, entry.value, len(entry.synonyms)) == ("flush.ms", "9", 2)
    assert len(reply.results[1].configs) == len(BROKER_CONFIGS) + len(FIXED_CONFIGS) > len(reply.results[2].configs)


def test_every_config_is_explained_and_described_from_the_one_table(operator, raylog):
    code, explained = raylog("configs", "explain", "--json")
    assert code == 0 and [each["name"] for each in explained] == list(BROKER_CONFIGS)
    described = operator.admin.describe_configs(broker=1)
    for each in explained:
        said = described[each["name"]].documentation
        assert f"Must be {each['values']}. Read by {each['read_by']}." in said, each
        assert ("Is the cluster's as a whole." in said) == (each["set"] == "all brokers"), each
        assert each["meaning"][1:] in said and each["type"] == described[each["name"]].type.name.lower()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("num.partitions",), "num.partitions=1\n"),
        (("num.partitions",), "  int, from 1 to 10000; set for all brokers; read by the controller\n"),
        (("log.roll.ms",), "  long, at least 1; set for one broker, or all; read by logs\n"),
        (("broker.rack",), "set for a broker by its start"),
        (("num.io.threads",), "  refused: raylog has no pools of threads"),
        (("--entity-type", "topics", "cleanup.policy"), "  list, some of delete, compact; set for a topic"),
        (
            ("--entity-type", "topics", "remote.storage.enable"),
            "  refused, unless it is the default: there is no remote",
        ),
    ],
)
def test_a_config_is_explained_without_a_cluster(raylog, asked, said):
    code, text = raylog("configs", "explain", *asked)
    assert code == 0 and said in text, text


@pytest.mark.parametrize(
    ("asked", "said"),
    [(("num.partition",), "'num.partitions'"), (("--entity-type", "topics", "segment.byte"), "'segment.bytes'")],
)
def test_what_is_no_config_is_explained_by_the_nearest_name(raylog, asked, said):
    with pytest.raises(ConfigError, match=f"did you mean {said}\\?"):
        raylog("configs", "explain", *asked)
