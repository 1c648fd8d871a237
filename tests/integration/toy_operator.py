"""The operator with one more row in its tuple of actuators.

`python -m tests.integration.toy_operator PROMETHEUS_URL NAMESPACE HEALTH_PORT`
"""

import asyncio
import logging
import sys

from tests.integration.toy_actuator import ToyActuator

from servingslo.cli.prometheus_flags import PrometheusFlags
from servingslo.cli.running.operate import operate
from servingslo.cli.running.run_options import RunOptions
from servingslo.controller.actuators.catalogue import ACTUATORS
from servingslo.controller.lease.leadership import NAMESPACE_TERMS
from servingslo.policy.inputs import Limits


def options(prometheus_url: str, namespace: str, health_port: int) -> RunOptions:
    """As `servingslo run` has them by default, with ticks of a second in one namespace."""
    return RunOptions(
        prometheus_url=prometheus_url,
        prometheus=PrometheusFlags(timeout_seconds=2.0),
        gateway=None,
        limits=Limits(tick_seconds=1.0),
        namespaces=(namespace,),
        health_host="127.0.0.1",
        health_port=health_port,
        record=None,
        lease_namespace=None,
        lease_name="toy-operator",
        lease_terms=NAMESPACE_TERMS,
        actuators=(*ACTUATORS, lambda means: ToyActuator(means.client)),
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(operate(options(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
