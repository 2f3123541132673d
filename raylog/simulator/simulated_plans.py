"""A simulated cluster whose controllers move: now and then somebody plans others, amid all faults.

Plans name brokers at random, one, three or five, whatever is under way, so that controllers start
blank, are voted in and out, retire and come back under the directory id that they had. What the
quorum promised, a voter's one vote a term among it, holds across that (``QuorumChecker``). At the
end the last plan that was decided has to be reached.
"""

from __future__ import annotations

from raylog.metadata.requests import ControllersPlan, PlanControllers
from raylog.simulator.simulation import Simulation


class PlanSimulation(Simulation):
    """A seed is another run here than without plans."""

    def run(self) -> None:
        self._arm()
        super().run()

    def _arm(self) -> None:
        delay_ms = self.scheduler.between(200, 3_000) * self.calm
        self.scheduler.after_ms(delay_ms, self._plan, "controllers are planned")

    def _plan(self) -> None:
        if self.is_healing:
            return
        counts = [count for count in (1, 3, 3, 5) if count <= len(self.brokers)]
        brokers = self.scheduler.rng.sample(sorted(self.brokers), self.scheduler.rng.choice(counts))

        def replied(reply: object) -> None:
            assert isinstance(reply, ControllersPlan), reply
            self.counts["plans refused" if reply.error else "plans of controllers"] += 1
            self.trace(f"plan of controllers on {brokers}: {reply}")

        self.administration.administrator.request(PlanControllers(tuple(brokers)), replied)
        self._arm()
