"""The operator's own metrics, held to Prometheus' conventions by promtool, if that is built.

python -m tests.rules.own_metrics

Ends with 1 and promtool's words where a name, a type or a help text breaks them.
"""

import re
import subprocess
import sys
from pathlib import Path

from tests.golden.decisions import SCALE_UP

from servingslo.adapters.metrics_export import OperatorMetrics
from servingslo.policy.pools.decision import FleetDecision
from servingslo_lab.rig.programs.cache import cache_directory
from servingslo_lab.rig.programs.versions import PROMTOOL

# A family without samples, which promtool would not read.
_EMPTY = re.compile(r"^# TYPE (\S+) (?:gauge|counter)\n(?=#|\Z)", re.MULTILINE)


def page() -> str:
    """A page with every family that the operator exports."""
    metrics = OperatorMetrics()
    metrics.observe(FleetDecision.of(SCALE_UP))
    return _EMPTY.sub(r"\g<0>\1 1\n", metrics.render().decode())


def complaints(promtool: Path, text: str) -> str:
    """What promtool says of a page; '' if it says nothing."""
    ended = subprocess.run(
        [str(promtool), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    return ended.stdout + ended.stderr


def main() -> None:
    """Check the page."""
    promtool = cache_directory() / PROMTOOL.key / PROMTOOL.program_name
    if not promtool.exists():
        sys.stdout.write("promtool is not built (make rig): the metrics are not checked\n")
        return
    sys.exit(complaints(promtool, page()) or 0)


if __name__ == "__main__":
    main()
