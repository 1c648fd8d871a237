"""`servingslo fit`: the law behind simulated engines is found again, and bad input is named."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tests.unit.cli_calls import MANIFEST

from servingslo.api.convert import targets_from_spec
from servingslo.cli.manifest import read_spec
from servingslo.controller.recordings.recording import observation_line
from servingslo.estimation.sample import (
    EngineSample,
    GatewayInstance,
    GatewaySample,
    PodSample,
)
from servingslo.policy.inputs import Observation
from servingslo.runtimes.gateways import CountedWhen
from servingslo_lab.cli.fitting.pages import engines_of_page
from servingslo_lab.rig.simulated.engine_metrics import vllm_page
from servingslo_lab.sim.fleets.engine_kinds import engine_kind
from servingslo_lab.sim.replicas.engine import Engine

KIND = engine_kind("l4-small")
INTERVAL_SECONDS = 15.0
PAGE_COUNT = 40


@pytest.fixture(scope="module")
def pages():
    """Pages of one engine, 15 s apart, under a load that goes up and down."""
    engine = Engine(law=KIND.law, limits=KIND.limits, max_model_len=16384)
    random = np.random.default_rng(7)
    at, texts = 0.0, [vllm_page(engine, model_name="tiny")]
    for number in range(1, PAGE_COUNT):
        end = number * INTERVAL_SECONDS
        rate = 1.5 + 1.0 * np.sin(number / 4)
        while (at := at + random.exponential(1.0 / rate)) < end:
            request = engine.requests.add(
                arrival=at,
                prompt_tokens=int(random.integers(100, 1500)),
                output_tokens=int(random.integers(20, 300)),
            )
            engine.advance(at)
            engine.submit(request, at)
        at = end
        engine.advance(end)
        texts.append(vllm_page(engine, model_name="tiny"))
    return texts


def written(pages, folder):
    """Flags that name the pages as files."""
    flags = []
    for number, page in enumerate(pages):
        path = folder / f"page-{number}.txt"
        path.write_text(page)
        flags += ["--metrics", str(path)]
    return flags


def test_the_law_of_the_engine_is_found_from_its_pages(cli, pages, tmp_path):
    """Step times at the concurrency seen are right within 5 %, and the fit is trusted."""
    called = cli("fit", *written(pages, tmp_path), "--interval", "15s", "-o", "json")
    fit = json.loads(called.out)[0]
    assert called.exit_code == 0, called.err
    assert fit["trusted"]
    assert fit["relative_error"] < 0.05
    law = fit["law"]
    context = 800.0 + 80.0
    for sequences in (8, 16, 32):
        step = law["step_fixed_seconds"] + law["step_per_sequence_seconds"] * sequences
        true = KIND.law.step_seconds(sequences, context_tokens=context * sequences)
        assert step == pytest.approx(true, rel=0.05)
    assert law["prefill_per_token_seconds"] == pytest.approx(
        KIND.law.prefill_per_token_seconds, rel=0.15
    )


def test_a_recording_gives_the_same_law_as_the_pages(cli, pages, tmp_path):
    """Both doors lead to one estimator."""
    by_pages = cli("fit", *written(pages, tmp_path), "--interval", "15s", "-o", "json")
    lines = [_observation(page, n * INTERVAL_SECONDS) for n, page in enumerate(pages)]
    recorded = cli("fit", "--recording", "-", "-o", "json", stdin="".join(lines))
    assert json.loads(recorded.out)[0]["law"] == json.loads(by_pages.out)[0]["law"]
    assert json.loads(recorded.out)[0]["workload"] == "inference/llama"


@pytest.mark.parametrize(
    ("name", "told", "rate"),
    [
        pytest.param("gateway-0", "GatewayCounts", 5.0, id="counts"),
        pytest.param(None, "GatewaySilent", None, id="silent"),
    ],
)
def test_the_arrival_rate_is_the_gateways_where_one_was_read(cli, pages, name, told, rate):
    """And it is said whose count it is: what a gateway refuses never reaches an engine."""
    lines = []
    for number, page in enumerate(pages):
        at = number * INTERVAL_SECONDS
        requests = 5.0 * (at + INTERVAL_SECONDS / 2)
        instance = GatewayInstance(name=name or "", age_seconds=0.0, requests_total=requests)
        instances = () if name is None else (instance,)
        gateway = GatewaySample(counted=CountedWhen.ARRIVED, instances=instances)
        lines.append(_observation(page, at, gateway))
    called = cli("fit", "--recording", "-", stdin="".join(lines))
    shown = next(line for line in called.out.splitlines() if "requests/s" in line)
    assert shown.endswith(f"({told})")
    if rate is not None:
        assert float(shown.split(": ")[1].split()[0]) == pytest.approx(rate, rel=0.02)
    plain = cli("fit", "--recording", "-", stdin="".join(map(_plain, lines))).out
    assert "(Gateway" not in plain


def test_too_few_pages_say_how_many_are_needed(cli, pages, tmp_path):
    """Exit code 1: a law from two windows is a guess."""
    called = cli("fit", *written(pages[3:6], tmp_path), "--interval", "15s")
    assert called.exit_code == 1
    assert "not trusted (ModelLearning), from 2 windows: too little was seen: 8" in called.out


def test_what_fit_prints_size_reads(cli, pages, tmp_path):
    """The law goes from one command to the other as text."""
    fit = json.loads(cli("fit", *written(pages, tmp_path), "--interval", "15s", "-o", "json").out)[
        0
    ]
    called = cli(
        "size", "--service-law", fit["service_law"], "--max-num-seqs", "64",
        "--max-num-batched-tokens", "2048", "--kv-tokens", "60000", "--arrival-rate", "5",
        "--prompt-tokens", "800", "--output-tokens", "160", "--objective", "ttft:p95:2s",
    )  # fmt: skip
    assert called.exit_code == 0, called.err


def test_what_fit_prints_goes_into_a_manifest_as_it_stands(cli, pages, tmp_path):
    """The lines in YAML and the spec in JSON state the law that was found, to four digits."""
    flags = (*written(pages, tmp_path), "--interval", "15s")
    fit = json.loads(cli("fit", *flags, "-o", "json").out)[0]
    lines = cli("fit", *flags).out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip() == "serviceLaw:")
    manifest = tmp_path / "slo.yaml"
    snippet = [line.removeprefix("  ") for line in lines[start : start + 4]]
    manifest.write_text(MANIFEST + "\n".join(snippet) + "\n")
    stated = targets_from_spec(read_spec(manifest)).service_law
    assert stated == targets_from_spec({**read_spec(manifest), **fit["spec"]}).service_law
    for field in fields(stated):
        assert getattr(stated, field.name) == pytest.approx(fit["law"][field.name], rel=1e-3)


def test_a_law_that_is_not_trusted_is_not_offered_for_a_manifest(cli, pages, tmp_path):
    """A guess in a spec would be trusted until it has been refuted."""
    flags = (*written(pages[3:6], tmp_path), "--interval", "15s")
    assert "serviceLaw" not in cli("fit", *flags).out
    assert json.loads(cli("fit", *flags, "-o", "json").out)[0]["spec"] is None


@pytest.mark.parametrize("text", ["4e-05", "4.0e-05", "4E-5", "0.00004"])
def test_a_law_from_a_status_is_read_with_its_exponent(tmp_path, text):
    """`kubectl get -o yaml` writes small numbers so, and kubectl reads them."""
    manifest = tmp_path / "slo.yaml"
    law = (
        f"{{stepFixedSeconds: 6.5e-03, stepPerSequenceSeconds: {text}, prefillPerTokenSeconds: 0}}"
    )
    manifest.write_text(f"{MANIFEST}  serviceLaw: {law}\n")
    stated = targets_from_spec(read_spec(manifest)).service_law
    assert (stated.step_fixed_seconds, stated.step_per_sequence_seconds) == (0.0065, 4e-05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param((), ("--metrics", "exactly one of"), id="no source"),
        pytest.param(
            ("--recording", "a", "--prometheus", "http://b"), ("exactly one of",), id="two sources"
        ),
        pytest.param(("--metrics", "only.txt"), ("1 page", "two or more"), id="one page"),
        pytest.param(
            ("--metrics", "a.txt", "--metrics", "b.txt"), ("a.txt", "readable"), id="no file"
        ),
        pytest.param(
            ("--metrics", "a", "--metrics", "b", "--interval", "soon"),
            ("--interval", "'soon'"),
            id="interval",
        ),
        pytest.param(("--recording", "none.jsonl"), ("--recording", "none.jsonl"), id="recording"),
        pytest.param(
            ("--recording", "a.jsonl", "--window", "6h"), ("--window", "only with --prometheus"),
            id="window of a recording",
        ),
        pytest.param(("--prometheus", "http://p"), ("--namespace",), id="no namespace"),
        pytest.param(
            ("--prometheus", "http://p", "--namespace", "n"), ("--target", "KIND/NAME"), id="target"
        ),
        pytest.param(
            ("--prometheus", "p:9090", "--namespace", "n", "--target", "Deployment/llama"),
            ("--prometheus", "http://"),
            id="url",
        ),
        pytest.param(
            ("--prometheus", "http://p", "--namespace", "n", "--target", "Deployment/a",
             "--window", "1s"),
            ("--window", "'1s'", "15s (--step)"),
            id="window",
        ),
        pytest.param(
            ("--prometheus", "http://p", "--namespace", "n", "--target", "Deployment/a",
             "--gateway-profile", "nginx"),
            ("gateway.profile", "'nginx'", "envoy-gateway"),
            id="gateway",
        ),
        pytest.param(
            ("--prometheus", "http://p", "--namespace", "n", "--target", "Deployment/a",
             "--gateway-name", "route"),
            ("--gateway-name", "'route'", "--gateway-profile"),
            id="gateway name without gateway",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named_with_its_value_and_what_is_allowed(cli, arguments, words):
    """Exit code 2 and one line, before anything is asked over the network."""
    called = cli("fit", *arguments)
    assert called.refuses(*words), called.err


@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param("<html>\n", ("text form",), id="no page"),
        pytest.param("go_goroutines 7\n", ("no engine", "vllm:num_requests_running"), id="other"),
    ],
)
def test_a_page_without_an_engine_is_named(cli, tmp_path, page, words):
    """The message leads to the file."""
    called = cli("fit", *written([page, page], tmp_path), "--interval", "15s")
    assert called.refuses("page-0.txt", *words), called.err


def test_a_recording_without_observations_is_refused(cli):
    """Nothing to fit is no success."""
    assert cli("fit", "--recording", "-", stdin="\n").refuses("--recording", "at least one")


def _observation(page, at, gateway=None):
    engines: tuple[EngineSample, ...] = engines_of_page(page, "page")
    pod = PodSample(name="page", ready=True, engines=engines)
    observation = Observation(
        time_seconds=at, namespace="inference", name="llama", pods=(pod,), gateway=gateway
    )
    return observation_line(observation) + "\n"


def _plain(line):
    return json.dumps({**json.loads(line), "gateway": None}) + "\n"


def test_a_page_that_is_cut_is_refused_and_a_byte_order_mark_is_not(cli, tmp_path):
    """Half of a number would be a number too."""
    data = Path(__file__).parents[1] / "golden" / "data" / "vllm_0.32.0_metrics.txt"
    page = data.read_text()
    whole, cut = tmp_path / "whole.txt", tmp_path / "cut.txt"
    whole.write_text(page, encoding="utf-8-sig")
    cut.write_text(page.rstrip("\n"))
    asked = ("fit", "--interval", "30s", "--metrics", whole, "--metrics")
    assert cli(*asked, whole).exit_code == 1
    assert cli(*asked, cut).refuses("cut.txt", "a whole page"), "a page without its end"
