"""Which worker of pytest-xdist runs what: tests that wait for the rig beside tests that compute.

The first workers take the modules of the rig, each on a control plane of its own that starts with
its first such test, and what computes when none is left. The others take what computes alone, at a
lower priority, so that what has a deadline on the rig is not kept from a core. A module stays with
one worker and so shares its fixtures; the order of modules and of their tests is that of the
collection, which pytest-randomly shuffles.
"""

import os
from typing import Any

import pytest
from tests.touched import RIG_FOLDERS
from xdist.scheduler import LoadScopeScheduling

# Two: while one waits for a rollout, the other does. A rig takes about 600 MiB of memory.
RIG_WORKERS = 2
# Of 19. A rig and what runs on it get about three times the share of a core (1.25 to the power).
NICENESS = 5


def on_rig(scope: str) -> bool:
    """Whether a module's tests are run where the rig is."""
    return scope.startswith(RIG_FOLDERS)


def worker_number(name: str) -> int:
    """The number in a worker's name: gw0, gw1 and so on."""
    return int(name.removeprefix("gw"))


def yields_to_rigs(config: pytest.Config) -> None:
    """Lower the priority of this process where it is a worker that only computes."""
    name = getattr(config, "workerinput", {}).get("workerid")
    if name is not None and worker_number(name) >= RIG_WORKERS:
        os.nice(NICENESS)


class RigBesideTheRest(LoadScopeScheduling):
    """Modules of the rig to the first workers, all others to those that have none to run."""

    def _next_scope(self, node: Any) -> str | None:
        takes_rigs = worker_number(node.gateway.id) < RIG_WORKERS
        waiting = list(self.workqueue)
        wanted = [scope for scope in waiting if on_rig(scope) == takes_rigs]
        if not takes_rigs:
            return wanted[0] if wanted else None
        return (wanted or waiting or [None])[0]

    def _reschedule(self, node: Any) -> None:
        if self.workqueue and self._next_scope(node) is None:
            # What is left is of the rig; another control plane for it would only start late.
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        scope = self._next_scope(node)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)
