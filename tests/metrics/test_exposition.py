"""The text that Prometheus reads, letter by letter, and which of its two formats a scraper gets."""

from __future__ import annotations

import pytest

from raylog.metrics import table
from raylog.metrics.exposition import OPENMETRICS, PROMETHEUS, content_type, exposition
from raylog.metrics.registry import Registry, Samples
from raylog.time_counts import TimeCounts


def some() -> Samples:
    samples = Samples()
    samples.add(table.LEADERS, 3)
    samples.add(table.BYTES_IN, 2**60, "b")
    samples.add(table.BYTES_IN, 7, 'a"\\\n')
    samples.add(table.LOOP_DELAY, 0.25, "2")
    return samples


def test_prometheus_text_names_a_counter_by_its_whole_name() -> None:
    assert exposition(some()) == (
        f"# HELP kafka_server_brokertopicmetrics_bytesin_total {table.BYTES_IN.meaning}\n"
        "# TYPE kafka_server_brokertopicmetrics_bytesin_total counter\n"
        'kafka_server_brokertopicmetrics_bytesin_total{topic="a\\"\\\\\\n"} 7\n'
        'kafka_server_brokertopicmetrics_bytesin_total{topic="b"} 1152921504606846976\n'
        f"# HELP kafka_server_replicamanager_leadercount {table.LEADERS.meaning}\n"
        "# TYPE kafka_server_replicamanager_leadercount gauge\n"
        "kafka_server_replicamanager_leadercount 3\n"
        f"# HELP raylog_event_loop_delay_seconds {table.LOOP_DELAY.meaning}\n"
        "# TYPE raylog_event_loop_delay_seconds gauge\n"
        'raylog_event_loop_delay_seconds{node_id="2"} 0.25\n'
    )


def test_openmetrics_names_the_family_and_ends() -> None:
    text = exposition(some(), OPENMETRICS)
    assert "# TYPE kafka_server_brokertopicmetrics_bytesin counter\n" in text
    assert 'kafka_server_brokertopicmetrics_bytesin_total{topic="b"} ' in text
    assert text.endswith("\n# EOF\n")


@pytest.mark.parametrize(
    ("accept", "format"),
    [
        ("", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("text/html", PROMETHEUS),
        ("application/openmetrics-text", OPENMETRICS),
        # what Prometheus 2 sends
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPENMETRICS,
        ),
        ("application/openmetrics-text;version=9.0.0, text/plain", PROMETHEUS),
        ("application/openmetrics-text;q=0, text/plain", PROMETHEUS),
        ("application/openmetrics-text;q=0.1, text/plain;q=0.9", PROMETHEUS),
        ("application/openmetrics-text;q=much", PROMETHEUS),
    ],
)
def test_the_accept_header_decides(accept: str, format: str) -> None:
    assert content_type(accept) == format


def test_a_registry_reads_at_each_collection() -> None:
    count = 0
    registry = Registry(lambda samples: samples.add(table.ISR_SHRINKS, count))
    assert registry.collect().of(table.ISR_SHRINKS) == {(): 0}
    count = 5
    registry.add(lambda samples: samples.add(table.ISR_SHRINKS, 1))
    assert registry.collect().of(table.ISR_SHRINKS) == {(): 6}


def test_samples_of_another_version_lose_what_is_not_known_here() -> None:
    plain = some().plain()
    told = (*plain, ("of_tomorrow_total", (), 1.0), (table.LEADERS.name, ("a new label",), 1.0))
    assert Samples.of_plain(told).plain() == plain


def test_a_series_without_its_labels_is_an_error() -> None:
    with pytest.raises(AssertionError, match="has the labels"):
        Samples().add(table.BYTES_IN, 1)


def test_a_histogram_has_the_counts_up_to_each_bound_their_sum_and_number() -> None:
    samples, times = Samples(), TimeCounts()
    for length_ns in (50_000, 50_001, 7_000_000, 40_000_000_000):
        times.add(length_ns)
    samples.add_times(table.TOTAL_TIME, times, "Fetch")
    samples.add_times(table.TOTAL_TIME, times, "Fetch")
    name, lines = table.TOTAL_TIME.name, exposition(Samples.of_plain(samples.plain())).splitlines()
    assert lines[1] == f"# TYPE {name} histogram"
    assert lines[2] == f'{name}_bucket{{request="Fetch",le="0.05"}} 2'
    assert lines[3] == f'{name}_bucket{{request="Fetch",le="0.1"}} 4'
    assert lines[8] == f'{name}_bucket{{request="Fetch",le="5.0"}} 4'
    assert lines[9] == f'{name}_bucket{{request="Fetch",le="10.0"}} 6'
    assert lines[-4] == f'{name}_bucket{{request="Fetch",le="30000.0"}} 6'
    assert lines[-3] == f'{name}_bucket{{request="Fetch",le="+Inf"}} 8'
    assert lines[-2] == f'{name}_sum{{request="Fetch"}} 80014.200002'
    assert lines[-1] == f'{name}_count{{request="Fetch"}} 8'
