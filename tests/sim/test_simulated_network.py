"""Links keep their order, lose their tail when they break, and wait behind cuts."""

from __future__ import annotations

from raylog.simulator.processes import Machine, Process
from raylog.simulator.scheduler import Scheduler
from raylog.simulator.simulated_network import End, Link, Network
from raylog.types import Endpoint


class Recorder:
    """An end, and a listener whose links all end here, that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    def accepted(self, link: Link) -> End:
        return self

    def opened(self, link: Link) -> None:
        self.heard.append("opened")

    def refused(self, link: Link) -> None:
        self.heard.append("refused")

    def received(self, link: Link, message: object) -> None:
        self.heard.append(message)

    def closed(self, link: Link) -> None:
        self.heard.append("closed")


class Pair:
    """Two machines with a process each; the second listens."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self.machines = [Machine(name, self.scheduler, wall_offset_ms=0) for name in ("a", "b")]
        for machine in self.machines:
            self.network.add_machine(machine)
        self.client, self.server = (Process(machine.name, machine) for machine in self.machines)
        self.at_client, self.at_server = Recorder(), Recorder()
        self.endpoint = self.network.listen(self.server, self.at_server)

    def connect(self) -> Link:
        link = self.network.connect(self.client, self.endpoint, self.at_client)
        self.settle()
        return link

    def settle(self) -> None:
        while self.scheduler.run_next() is not None:
            pass


def test_messages_of_one_link_arrive_in_order_whatever_their_delays() -> None:
    for seed in range(20):
        pair = Pair(seed)
        link = pair.connect()
        for number in range(50):
            link.send(pair.client, number)
        pair.settle()
        assert pair.at_server.heard == list(range(50))


def test_a_cut_holds_back_one_direction_and_healing_delivers_in_order() -> None:
    for seed in range(20):
        pair = Pair(seed)
        link = pair.connect()
        link.send(pair.client, 0)
        pair.scheduler.run_next()
        pair.network.cut(*pair.machines)
        link.send(pair.client, 1)
        link.send(pair.server, "the other way")
        pair.settle()
        assert "the other way" in pair.at_client.heard and 1 not in pair.at_server.heard
        link.send(pair.client, 2)
        pair.network.heal()
        link.send(pair.client, 3)
        pair.settle()
        assert pair.at_server.heard == [0, 1, 2, 3]


def test_a_broken_link_loses_a_tail_and_tells_both_ends_once() -> None:
    lost = set()
    for seed in range(40):
        pair = Pair(seed)
        link = pair.connect()
        for number in range(10):
            link.send(pair.client, number)
        for _ in range(seed % 10):
            pair.scheduler.run_next()
        link.break_off()
        pair.settle()
        assert pair.at_client.heard == ["opened", "closed"]
        if pair.at_server.heard:
            *numbers, last = pair.at_server.heard
            assert last == "closed" and numbers == list(range(len(numbers)))
        lost.add(len(pair.at_server.heard))
    assert len(lost) > 3


def test_a_dead_process_is_refused_and_a_paused_one_accepts_in_silence() -> None:
    pair = Pair(1)
    pair.server.pause()
    link = pair.connect()
    assert pair.at_client.heard == ["opened"]
    link.send(pair.client, "hello")
    pair.settle()
    assert pair.at_server.heard == []
    pair.server.resume()
    assert pair.at_server.heard == ["hello"]
    pair.server.kill()
    pair.settle()
    assert pair.at_client.heard == ["opened", "closed"]
    pair.connect()
    assert pair.at_client.heard[-1] == "refused"


def test_a_machine_without_power_is_silent_and_resets_old_links_when_it_is_back() -> None:
    pair = Pair(3)
    link = pair.connect()
    pair.machines[1].lose_power()
    link.send(pair.client, "into the void")
    pair.network.connect(pair.client, pair.endpoint, pair.at_client)
    pair.settle()
    assert pair.at_client.heard == ["opened"]
    pair.machines[1].turn_on()
    link.send(pair.client, "who?")
    pair.settle()
    assert pair.at_client.heard == ["opened", "closed"]


def test_a_strike_kills_a_process_at_its_nth_disk_operation() -> None:
    pair = Pair(4)
    file = pair.server.files.open("/f", create=True)
    pair.machines[1].arm(pair.server, operations=2, power=False)
    written: list[int] = []

    def work() -> None:
        for number in range(10):
            file.write_at(number, b"x")
            written.append(number)

    pair.server.run(work)
    assert written == [0, 1] and not pair.server.alive
    assert len(pair.machines[1].disk.files().read_file("/f")) == 2


def test_an_unknown_port_of_a_running_machine_refuses() -> None:
    pair = Pair(5)
    pair.network.connect(pair.client, Endpoint("b", 1), pair.at_client)
    pair.settle()
    assert pair.at_client.heard == ["refused"]
