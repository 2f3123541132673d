from __future__ import annotations

import pytest

from raylog.configs import topic_configs
from raylog.configs.replication_quotas import FOLLOWERS, LEADERS
from raylog.configs.topic_configs import KAFKA_CONFIGS, LONG_MAX, TOPIC_CONFIGS, validate_topic_name, validated
from raylog.errors import ConfigError, KafkaError
from raylog.log.config import LogConfig

MAX = str(LONG_MAX)
KAFKA_3_6 = {
    "cleanup.policy": "delete", "compression.type": "producer", "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000", "flush.messages": MAX, "flush.ms": MAX,
    "follower.replication.throttled.replicas": "", "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "", "local.retention.bytes": "-2", "local.retention.ms": "-2",
    "max.compaction.lag.ms": MAX, "max.message.bytes": "1048588", "message.downconversion.enable": "true",
    "message.format.version": "3.0-IV1", "message.timestamp.after.max.ms": MAX, "message.timestamp.before.max.ms": MAX,
    "message.timestamp.difference.max.ms": MAX, "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5", "min.compaction.lag.ms": "0", "min.insync.replicas": "1", "preallocate": "false",
    "remote.storage.enable": "false", "retention.bytes": "-1", "retention.ms": "604800000", "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760", "segment.jitter.ms": "0", "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}  # fmt: skip


def test_all_thirty_one_configs_of_kafka_are_known_with_kafkas_defaults():
    assert len(KAFKA_CONFIGS) == 31
    assert {name: config.default for name, config in KAFKA_CONFIGS.items()} == KAFKA_3_6


@pytest.mark.parametrize("name", sorted(TOPIC_CONFIGS))
def test_each_config_accepts_its_default_and_says_what_it_means(name):
    config = TOPIC_CONFIGS[name]
    assert validated(name, config.default) == config.default
    assert len(config.meaning) > 10


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("remote.storage.enable", "true", "remote storage"),
        ("local.retention.ms", "1000", "remote storage"),
        ("message.format.version", "2.8-IV0", "v2"),
    ],
)
def test_what_is_not_built_is_refused_by_name_with_the_reason(name, value, reason):
    with pytest.raises(ConfigError, match=f"{name}=.*refused: .*{reason}"):
        validated(name, value)


@pytest.mark.parametrize("name", sorted(set(KAFKA_CONFIGS) - {n for n, c in KAFKA_CONFIGS.items() if c.refused}))
def test_each_honoured_config_reaches_somebody_who_honours_it(name):
    elsewhere = {"min.insync.replicas", "unclean.leader.election.enable", "message.downconversion.enable"}
    elsewhere |= {LEADERS, FOLLOWERS}
    samples = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.3",
        "preallocate": "true",
        "compression.type": "zstd",
        "message.timestamp.type": "LogAppendTime",
    }
    if name not in elsewhere:
        changed = LogConfig.from_topic_configs(
            topic_configs.effective({name: validated(name, samples.get(name, "777"))})
        )
        assert changed != LogConfig.from_topic_configs(topic_configs.effective({})), f"the log ignores {name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "13"), ("segment.bytes", "big"), ("retention.ms", "-2"), ("min.insync.replicas", "0"),
        ("preallocate", "yes"), ("message.timestamp.type", "Now"), ("segment.bytes", "2147483648"), ("flush.ms", str(2**63)),
        ("leader.replication.throttled.replicas", "0:1,x"), ("follower.replication.throttled.replicas", "0:1,*"),
        ("cleanup.policy", "shred"), ("min.cleanable.dirty.ratio", "1.5"), ("replicas.per.actor", "0"), ("retention.ms", None),
    ],
)  # fmt: skip
def test_a_bad_value_is_an_error_that_names_the_config(name, value):
    with pytest.raises(ConfigError, match=name):
        validated(name, value)


def test_an_unknown_config_suggests_the_nearest():
    with pytest.raises(ConfigError, match=r"'retention\.msec'; did you mean 'retention\.ms'"):
        validated("retention.msec", "1")
    with pytest.raises(ConfigError, match=r"unknown topic config 'zzz'$"):
        validated("zzz", "1")


def test_the_deprecated_timestamp_bound_stands_in_for_its_successors():
    values = topic_configs.effective(
        {"message.timestamp.difference.max.ms": "5", "message.timestamp.after.max.ms": "7"}
    )
    assert (values["message.timestamp.before.max.ms"], values["message.timestamp.after.max.ms"]) == ("5", "7")


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_a_legal_topic_name_is_accepted(name):
    validate_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "ü", "a\n", "a:b"])
def test_an_illegal_topic_name_is_refused(name):
    with pytest.raises(KafkaError):
        validate_topic_name(name)


def test_names_that_differ_only_in_dots_and_underscores_collide():
    assert topic_configs.folded_name("a.b") == topic_configs.folded_name("a_b")
    assert len({topic_configs.folded_name(each) for each in ("a.b", "ab", "A.b", "a-b")}) == 4
