"""What is asked of Triton's servers is what its published version answers."""

import re

from tests.contracts.read import PACKAGES
from tests.unit.test_contracts import ROOT, kept

from servingslo_lab.rig.programs.versions import LOCK, TOOLS_DIRECTORY


def test_what_is_asked_of_a_server_that_is_a_program_is_published():
    """Fields of its pages that limits are read from, and flags that its page tells users of."""
    (package,) = (one for one in PACKAGES if one.served)
    lock = (TOOLS_DIRECTORY / package.runtime / LOCK).read_text(encoding="utf-8")
    assert f"{package.wheel}=={package.version} " in lock
    found = kept(package)
    batching, stats = "config.dynamic_batching", "stats.model_stats"
    assert {
        "config.max_batch_size",
        "config.parameters",
        "config.instance_group.count",
        "config.instance_group.gpus",
        f"{batching}.preferred_batch_size",
        f"{batching}.max_queue_delay_microseconds",
        f"{batching}.default_queue_policy.max_queue_size",
        f"{stats}.inference_stats.success.ns",
        f"{stats}.inference_stats.fail.count",
        *(f"{stats}.batch_stats.compute_{part}.ns" for part in ("input", "infer", "output")),
        f"{stats}.batch_stats.batch_size",
    } <= set(found["fields"])
    page = (ROOT / "docs" / "how-to" / "triton-limits.md").read_text(encoding="utf-8")
    flags = set(re.findall(r"`(--[a-z-]+)[=`]", page))
    assert {"--model-control-mode", "--http-restricted-api"} <= flags <= set(found["flags"])
