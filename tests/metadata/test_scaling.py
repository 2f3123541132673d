"""Hosts that come and go by themselves: what is busy is spread over cores that are idle, and comes home when it is not."""

from __future__ import annotations

import uuid

import msgpack
import pytest

from raylog.configs.broker_configs import for_all_brokers
from raylog.control.session import Heartbeat, ReplicaLoad
from raylog.errors import ConfigError
from raylog.metadata.actors.host_loads import Bounds, HostLoad, worth_moving
from raylog.metadata.configuration.config_requests import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ResourceChanges,
    ResourceType,
)
from raylog.metadata.records import HostKind, HostPlanned, decode_batch, encode_batch
from raylog.metadata.requests import CreateTopics, DeleteTopics, PlanHost, RequestedTopic
from raylog.types import Condition, TopicIdPartition

BEAT_MS = 2_000
LONG_MS = 420_000


class Loaded:
    """One broker whose hosts report what their replicas' demands make of them. Demands are thousandths of a core."""

    def __init__(self, world, partitions=8, cores=2, **topic):
        self.world = world
        self.cores = cores
        self.demands = {}
        topic_id = world.create("a", *[(0,)] * partitions, **{"replicas_per_actor": None} | topic)
        self.ids = [TopicIdPartition(topic_id, partition) for partition in range(partitions)]
        self.first = self.node(self.ids[0])
        self.moves = []

    @property
    def hosts(self):
        return sorted(node for node, host in self.world.image.hosts.items() if host.kind is HostKind.REPLICAS)

    @property
    def added(self):
        return [node for node in self.hosts if self.world.image.hosts[node].is_automatic]

    def node(self, id):
        return self.world.state(id).node_of(0)

    def held(self, node):
        return [id for id in self.ids if self.node(id) == node]

    def demand(self, per_mille, ids=None):
        self.demands = dict.fromkeys(self.ids if ids is None else ids, per_mille)

    def run(self, ms):
        """Heartbeats every two seconds; notes each move."""
        world = self.world
        end = world.now + ms
        while world.now < end:
            before = {id: self.node(id) for id in self.ids}
            world.now += BEAT_MS
            for _, process in sorted(world.processes.items()):
                if process.session is not None and process.runs:
                    self.beat(process)
            world.tick()
            for id in self.ids:
                world.processes[self.node(id)].conditions[id] = Condition.CLEAN
            self.moves += [(world.now, id) for id in self.ids if self.node(id) != before[id]]
            self.check()

    def beat(self, process):
        wanted = {id: self.demands[id] for id in self.ids if id in process.held and self.demands.get(id)}
        busy = min(1_000, sum(wanted.values()))
        loads = tuple(ReplicaLoad(*id, 0, demand, 0) for id, demand in wanted.items())
        process.say(Heartbeat(busy, 1 << 20, self.cores, busy, loads))

    def run_until_moved(self):
        """Until a replica is on its way to a host that does not open it."""
        beats = 0
        while all(self.node(id) == self.first for id in self.ids):
            assert beats < 60, "nothing moves"
            beats += 1
            self.world.now += BEAT_MS
            for process in self.world.processes.values():
                self.beat(process)

    def check(self):
        assert all(self.world.state(id).leader == 0 for id in self.ids)
        for id in self.ids:
            holders = [process.node for process in self.world.processes.values() if id in process.held and process.runs]
            assert holders == [self.node(id)], f"{id} is held by {holders}"

    def configure(self, **values):
        changes = tuple(
            ConfigChange("actor.scaling." + key.replace("_", "."), ConfigOperation.SET, str(value))
            for key, value in values.items()
        )
        resource = ResourceChanges(ResourceType.BROKER, "", changes)
        return self.world.ask(AlterConfigs((resource,))).resources[0]


@pytest.fixture
def loaded(new_world):
    return Loaded(new_world(1, plans_hosts=True))


def of_cores(new_world, cores, partitions=8):
    return Loaded(new_world(1, plans_hosts=True), partitions, cores)


def test_a_saturated_host_gets_another_one_and_half_of_its_load_goes_there(loaded):
    loaded.demand(125)
    loaded.run(60_000)
    assert len(loaded.hosts) == 2 and len(loaded.added) == 1
    assert [len(loaded.held(node)) for node in loaded.hosts] == [4, 4]
    assert len(loaded.moves) == 4


def test_an_idle_host_that_was_added_gives_its_replicas_back_and_ends(loaded):
    loaded.demand(125)
    loaded.run(60_000)
    (added,) = loaded.added
    loaded.demand(10)
    loaded.run(290_000)
    assert loaded.added == [added], "it was not idle for long enough"
    loaded.run(60_000)
    assert loaded.hosts == [loaded.first] and len(loaded.held(loaded.first)) == 8
    assert loaded.world.processes[added].exited and added not in loaded.world.image.actors


def test_steady_load_moves_nothing_after_the_first_split(loaded):
    loaded.demand(125)
    loaded.run(60_000)
    moves = list(loaded.moves)
    loaded.run(LONG_MS)
    assert loaded.moves == moves and len(loaded.hosts) == 2


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_there_are_as_many_busy_hosts_as_cores_in_the_end(new_world, cores):
    loaded = of_cores(new_world, cores, partitions=16)
    loaded.demand(500)
    loaded.run(LONG_MS)
    assert len(loaded.hosts) == cores
    held = [len(loaded.held(node)) for node in loaded.hosts]
    assert max(held) - min(held) <= 16 // cores // 2, held


def test_a_peak_of_a_few_seconds_adds_nothing(loaded):
    for _ in range(20):
        loaded.demand(125)
        loaded.run(2 * BEAT_MS)
        loaded.demand(20)
        loaded.run(2 * BEAT_MS)
    assert loaded.hosts == [loaded.first] and not loaded.moves


def test_one_replica_that_makes_all_the_load_stays_where_it_is(loaded):
    loaded.demand(2_000, loaded.ids[:1])
    loaded.run(LONG_MS)
    assert loaded.hosts == [loaded.first] and not loaded.moves


def test_a_hot_replica_among_cold_ones_goes_alone(loaded):
    loaded.demands = {loaded.ids[3]: 600} | {id: 50 for id in loaded.ids if id != loaded.ids[3]}
    loaded.run(60_000)
    (added,) = loaded.added
    assert loaded.held(added) == [loaded.ids[3]]


def test_a_host_that_is_there_is_used_before_another_one_is_added(loaded):
    by_hand = loaded.world.ask(PlanHost(0)).node_id
    loaded.demand(125)
    loaded.run(60_000)
    assert loaded.hosts == [loaded.first, by_hand] and len(loaded.held(by_hand)) == 4


def test_a_host_that_somebody_added_by_hand_stays_when_it_is_idle(loaded):
    by_hand = loaded.world.ask(PlanHost(0)).node_id
    loaded.demand(125)
    loaded.run(60_000)
    loaded.demand(0)
    loaded.run(LONG_MS)
    assert loaded.hosts == [loaded.first, by_hand]


def test_a_machine_whose_cores_others_of_our_processes_use_gets_no_further_host(loaded):
    busy = next(node for node, host in loaded.world.image.hosts.items() if host.kind is HostKind.COORDINATOR)
    coordinator = loaded.world.processes[busy]
    say = coordinator.say
    coordinator.say = lambda frame: say(Heartbeat(700, 1, 2, 700) if isinstance(frame, Heartbeat) else frame)
    loaded.demand(125)
    loaded.run(60_000)
    assert loaded.hosts == [loaded.first]


def test_it_can_be_switched_off_and_on_while_it_runs(loaded):
    assert loaded.configure(enable="false").error == 0
    loaded.demand(125)
    loaded.run(60_000)
    assert loaded.hosts == [loaded.first]
    assert loaded.configure(enable="true").error == 0
    loaded.run(60_000)
    assert len(loaded.added) == 1


def test_the_bounds_are_what_they_are_set_to(loaded):
    assert loaded.configure(busy_ratio=0.3, idle_ratio=0.05, busy_ms=20_000).error == 0
    loaded.demand(50)
    loaded.run(20_000)
    assert not loaded.added
    loaded.run(20_000)
    assert len(loaded.added) == 1


def test_no_broker_gets_more_hosts_than_it_may_have(new_world):
    loaded = of_cores(new_world, 8, partitions=16)
    assert loaded.configure(actors_max=3).error == 0
    loaded.demand(500)
    loaded.run(LONG_MS)
    assert len(loaded.hosts) == 3


def test_the_next_controller_knows_which_hosts_were_added(loaded):
    loaded.demand(125)
    loaded.run(60_000)
    (added,) = loaded.added
    loaded.world.restart_controller()
    for process in loaded.world.processes.values():
        process.hello()
    loaded.world.run_later()
    loaded.run(60_000)
    assert loaded.added == [added] and len(loaded.held(added)) == 4, "nothing flaps because somebody else decides"
    loaded.demand(0)
    loaded.run(400_000)
    assert loaded.hosts == [loaded.first]


def added_host_that_opens_nothing(loaded):
    """Saturate the first host, until a replica is on its way to a host whose opening of it does not end."""
    loaded.demand(125)
    while not loaded.added:
        loaded.run(BEAT_MS)
    target = loaded.world.processes[loaded.added[0]]
    target.opens = False
    loaded.run_until_moved()
    return target


def test_a_controller_that_comes_in_the_middle_of_a_step_leaves_nothing_behind(loaded):
    target = added_host_that_opens_nothing(loaded)
    assert loaded.world.state(loaded.held(target.node)[0]).leader == -1, "the step waits for it"
    loaded.world.restart_controller()
    target.opens = True
    for process in loaded.world.processes.values():
        process.hello()
    loaded.world.run_later()
    loaded.run(120_000)
    assert [len(loaded.held(node)) for node in loaded.hosts] == [4, 4]


def test_an_idle_host_stays_where_the_others_could_not_take_its_load(loaded):
    loaded.demand(125)
    loaded.run(60_000)
    (added,) = loaded.added
    loaded.demands = {id: 40 if loaded.node(id) == added else 150 for id in loaded.ids}
    loaded.run(LONG_MS)
    assert loaded.added == [added] and len(loaded.held(added)) == 4


def test_one_replica_moves_at_a_time(loaded):
    target = added_host_that_opens_nothing(loaded)
    for _ in range(5):
        loaded.world.now += BEAT_MS
        for process in loaded.world.processes.values():
            loaded.beat(process)
    assert len(loaded.held(target.node)) == 1, "the next one waits until the first is open"


def test_a_replica_stays_while_another_one_of_its_partition_is_out_of_sync(new_world):
    world = new_world(2, plans_hosts=True)
    topic_id = world.create("a", (0, 1), (0, 1), replicas_per_actor=None)
    ids = [TopicIdPartition(topic_id, partition) for partition in range(2)]
    for id in ids:
        assert world.leader(id).alter(id, 0) == 0
    first = world.process(ids[0], 0)

    def beats(count):
        for _ in range(count):
            world.now += BEAT_MS
            for process in list(world.processes.values()):
                held = tuple(ReplicaLoad(*id, 0, 1, 0) for id in process.held) if process.broker == 0 else ()
                busy = 450 * len(held)
                process.say(Heartbeat(busy, 1, 4, busy, held))

    beats(30)
    assert {world.process(id, 0) for id in ids} == {first}
    for id in ids:
        assert world.leader(id).alter(id, 0, 1) == 0
    beats(30)
    assert len({world.process(id, 0) for id in ids}) == 2


def test_an_added_host_that_never_comes_is_given_up(loaded):
    loaded.world.starts_at_once = False
    loaded.demand(125)
    loaded.run(20_000)
    assert len(loaded.added) == 1
    loaded.demand(0)
    loaded.run(60_000)
    assert loaded.hosts == [loaded.first] and not loaded.moves


def test_new_replicas_do_not_go_to_a_host_that_was_added_for_hot_ones(loaded):
    loaded.demands = {loaded.ids[3]: 600} | {id: 50 for id in loaded.ids if id != loaded.ids[3]}
    loaded.run(60_000)
    topic_id = loaded.world.create("b", (0,), replicas_per_actor=None)
    assert loaded.world.state(TopicIdPartition(topic_id, 0)).node_of(0) == loaded.first


def test_topics_with_processes_of_their_own_are_left_alone(new_world):
    loaded = Loaded(new_world(1, plans_hosts=True), 4, replicas_per_actor=4)
    loaded.demand(250)
    loaded.run(60_000)
    assert not loaded.moves and not loaded.added


def test_a_topic_that_is_deleted_while_its_replicas_move_ends_the_step(loaded):
    loaded.demand(125)
    while not loaded.added:
        loaded.run(BEAT_MS)
    loaded.ids, ids = [], loaded.ids
    assert ids and not loaded.world.ask(DeleteTopics(("a",))).topics[0].error
    loaded.run(400_000)
    assert loaded.hosts == [loaded.first]
    assert not loaded.world.ask(CreateTopics((RequestedTopic("c", 1, 1),))).topics[0].error


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"busy_ratio": "-0.1"}, "must be from 0 to 1"),
        ({"busy_ratio": "1.01"}, "must be from 0 to 1"),
        ({"idle_ratio": "0.75"}, "actor.scaling.idle.ratio=0.75 is not below actor.scaling.busy.ratio=0.75"),
        ({"busy_ratio": "0.2"}, "actor.scaling.idle.ratio=0.2 is not below actor.scaling.busy.ratio=0.2"),
        ({"busy_ratio": "0.5", "idle_ratio": "0.6"}, "0.6 is not below"),
        ({"busy_ms": "-1"}, "must be at least 0"),
        ({"actors_max": "3"}, "no broker runs on more than 2 cores"),
    ],
)
def test_bounds_that_make_no_sense_are_refused(loaded, values, words):
    loaded.run(BEAT_MS)
    outcome = loaded.configure(**values)
    assert outcome.error and words in (outcome.message or ""), outcome


def test_taking_a_bound_away_is_refused_where_the_default_does_not_go_with_the_other(loaded):
    assert loaded.configure(busy_ratio="0.9", idle_ratio="0.8").error == 0
    deleted = ConfigChange("actor.scaling.busy.ratio", ConfigOperation.DELETE, None)
    outcome = loaded.world.ask(AlterConfigs((ResourceChanges(ResourceType.BROKER, "", (deleted,)),))).resources[0]
    assert outcome.error and "0.8 is not below" in outcome.message
    replaced = ResourceChanges(ResourceType.BROKER, "", (), replaces=True)
    assert loaded.world.ask(AlterConfigs((replaced,))).resources[0].error == 0


def test_what_a_cluster_is_started_with_is_checked_before_anything_starts():
    assert for_all_brokers({"actor_scaling_enable": False}) == {"actor.scaling.enable": "false"}
    with pytest.raises(ConfigError, match="set both so that the idle one is clearly lower"):
        for_all_brokers({"actor.scaling.idle.ratio": 0.8})
    with pytest.raises(ConfigError, match="must be from 0 to 1"):
        for_all_brokers({"actor.scaling.busy.ratio": 75})


def test_a_host_planned_by_an_older_version_was_not_added_by_itself():
    host = HostPlanned(65_538, uuid.UUID(int=1), HostKind.REPLICAS, is_automatic=True)
    (plain,) = msgpack.unpackb(encode_batch([host]))
    assert plain["v"] == 2 and decode_batch(encode_batch([host])) == (host,)
    older = {key: value for key, value in plain.items() if key != "is_automatic"} | {"v": 1}
    assert decode_batch(msgpack.packb([older])) == (HostPlanned(65_538, uuid.UUID(int=1), HostKind.REPLICAS),)


# ---------------------------------------------------------- the arithmetic

A, B, C, D = (TopicIdPartition(uuid.UUID(int=1), partition) for partition in range(4))


def test_the_hottest_goes_first_and_both_sides_end_even():
    assert worth_moving({A: 400, B: 300, C: 200, D: 100}, 0, movable=(A, B, C, D)) == [A, D]
    assert worth_moving({A: 500, B: 500}, 0, movable=(A, B)) == [A]


def test_what_gains_too_little_is_not_moved():
    assert worth_moving({A: 900}, 0, movable=(A,)) == []
    assert worth_moving({A: 900, B: 50}, 0, movable=(A, B)) == []
    assert worth_moving({A: 500, B: 450}, 900, movable=(A, B)) == []


def test_what_may_not_move_stays_and_counts():
    assert worth_moving({A: 400, B: 300, C: 300}, 0, movable=(C,)) == [C]
    assert worth_moving({A: 400, B: 300}, 0, movable=()) == []


def test_load_is_split_by_traffic_and_a_break_begins_the_window_anew():
    bounds = Bounds(busy_ms=5_000)
    load = HostLoad(1)
    load.report(Heartbeat(busy_per_mille=-1), bounds, 0)
    assert load.busy_since_ms is None and load.idle_since_ms is None, "it has measured nothing yet"
    loads = (ReplicaLoad(*A, 0, 300, 0), ReplicaLoad(*B, 0, 0, 100))
    load.report(Heartbeat(busy_per_mille=800, loads=loads), bounds, 1_000)
    assert load.shares == {A: 600, B: 200} and load.was_busy_for(5_000, 6_000) and not load.was_busy_for(5_000, 5_999)
    load.report(Heartbeat(busy_per_mille=700), bounds, 3_000)
    load.report(Heartbeat(busy_per_mille=900), bounds, 5_000)
    assert not load.was_busy_for(5_000, 9_000) and load.was_busy_for(5_000, 10_000)
