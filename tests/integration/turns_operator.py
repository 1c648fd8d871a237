"""`servingslo` as it is, but histograms are read in turns from 100 engines on, not from 500."""

from dataclasses import replace

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.cli.main import main
from servingslo.cli.running import operate
from servingslo.cli.running.run_options import RunOptions

ENGINES_EACH_TURN = 100
_read_options = operate.prometheus_config


def _in_turns(options: RunOptions) -> PrometheusConfig:
    return replace(_read_options(options), histogram_engines_each_tick=ENGINES_EACH_TURN)


if __name__ == "__main__":
    operate.prometheus_config = _in_turns
    main()
