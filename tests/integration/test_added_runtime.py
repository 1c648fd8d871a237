"""Engines whose metrics a relabelling renamed, by a profile of the administrator's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.integration.operator_under_test import (
    LENGTH_SPREAD,
    Engines,
    Operator,
    Tenant,
    steady_trace,
)
from tests.integration.test_lifecycle_scaling import FITTED_WITHIN_SECONDS, LAW

from servingslo_lab.rig.cluster import Rig

pytestmark = pytest.mark.rig
PREFIX, NAME = "house_llm_", "house"
# Of the simulated engines, as the relabelling leaves them.
PROFILE = {
    "metrics": {
        "running": f"{PREFIX}num_requests_running",
        "waiting": f"{PREFIX}num_requests_waiting",
        "kvUsageRatio": f"{PREFIX}kv_cache_usage_perc",
        "promptTokensTotal": f"{PREFIX}prompt_tokens_total",
        "generationTokensTotal": f"{PREFIX}generation_tokens_total",
        "finishedTotal": f"{PREFIX}request_success_total",
        "ttftSeconds": f"{PREFIX}time_to_first_token_seconds",
        "interTokenSeconds": f"{PREFIX}inter_token_latency_seconds",
        "iterationTokens": f"{PREFIX}iteration_tokens_total",
        "promptTokens": f"{PREFIX}request_prompt_tokens",
        "outputTokens": f"{PREFIX}request_generation_tokens",
    },
    "capacity": {
        "metric": f"{PREFIX}cache_config_info",
        "blockTokens": "block_size",
        "blocks": "num_gpu_blocks",
    },
    "flags": {"maxSequences": "--max-num-seqs", "maxBatchedTokens": "--max-num-batched-tokens"},
}


@pytest.fixture(scope="module")
def engines(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Simulated engines whose names are changed as they are scraped, known to the operator."""
    file = tmp_path_factory.mktemp("runtimes") / "runtimes.yaml"
    file.write_text(yaml.safe_dump({NAME: PROFILE}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patched, rig.scrape_plan_kept():
        patched.setenv("SERVINGSLO_RUNTIME_PROFILES", str(file))
        host = Engines(rig)
        rig.configure_prometheus(
            http_sd_url=f"{host.url}/sd", scrape_interval_seconds=1.0, engines_prefix=PREFIX
        )
        yield host
        host.process.stop()


@pytest.mark.slow("servingslo.runtimes", "servingslo.adapters.prometheus.reading")
def test_replicas_follow_the_load_of_engines_that_only_the_administrator_knows(
    tenant: Tenant, operator: Operator, tmp_path: Path
) -> None:
    """They are recognized, their limits are read from their arguments, and their law is fitted."""
    tenant.create_deployment(replicas=1)
    tenant.begin_traffic(
        steady_trace(tmp_path / "load.csv", rate=12.0, seconds=300, spread=LENGTH_SPREAD)
    )
    tenant.create_slo(serviceLaw=LAW)
    tenant.wait(
        lambda: tenant.replicas() > 1, what="a scale-up", timeout_seconds=FITTED_WITHIN_SECONDS
    )
    told = tenant.wait_event("ModelTrusted", timeout_seconds=FITTED_WITHIN_SECONDS)
    assert told.startswith("service law from fit")
    status = tenant.status()
    assert status["model"]["runtime"] == NAME
    assert tenant.decision()["runtime"] == {"name": NAME, "source": "recognized"}
    assert status["batching"]["current"]["maxNumSeqs"] == 64
    tenant.wait_line(operator, "decided", f"runtime={NAME}", "max_num_seqs=64")


def test_a_runtime_may_be_stated_by_the_name_that_was_given_to_it_and_by_no_other(
    tenant: Tenant,
) -> None:
    """The API server takes both; the operator takes one, and says which there are."""
    tenant.create_deployment("stated", replicas=1)
    tenant.create_slo("stated", runtime=NAME)
    tenant.wait_condition("MetricsFresh", "True", name="stated")
    assert tenant.decision("stated")["runtime"]["source"] == "stated"
    tenant.create_deployment("mistaken", replicas=1)
    tenant.create_slo("mistaken", runtime="hoise")
    tenant.wait(
        lambda: "'hoise' is not allowed" in str(tenant.slo("mistaken").get("status")),
        what="the name is refused",
    )
    told = str(tenant.status("mistaken"))
    assert "InvalidSpec" in told
    assert f"allowed: Auto, vllm, sglang, triton, trtllm, {NAME}" in told
