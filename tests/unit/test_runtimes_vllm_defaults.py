"""Limits of a vLLM that was given none, as its own code sets them."""

import pytest

from servingslo.runtimes.engines.vllm_defaults import GIBIBYTE, default_limits
from servingslo.runtimes.profile import EngineSetting


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        pytest.param(EngineSetting(), (128, 2048), id="nothing-known"),
        pytest.param(EngineSetting(accelerator=True), (256, 2048), id="unknown-card"),
        pytest.param(EngineSetting(card="NVIDIA L4"), (256, 2048), id="small-card"),
        pytest.param(EngineSetting(card="NVIDIA H100 80GB HBM3"), (1024, 8192), id="h100"),
        pytest.param(EngineSetting(card="NVIDIA-A100-SXM4-80GB"), (256, 2048), id="a100"),
        pytest.param(EngineSetting(card="NVIDIA GH200 480GB"), (1024, 8192), id="gh200"),
        pytest.param(EngineSetting(card="NVIDIA H200"), (1024, 8192), id="h200"),
        pytest.param(EngineSetting(card="NVIDIA B200", version=(0, 32)), (1024, 16384), id="b200"),
        pytest.param(
            EngineSetting(card="NVIDIA H200", card_memory_bytes=141e9, part_of_card=True),
            (256, 2048),
            id="part-of-a-card",
        ),
        pytest.param(
            EngineSetting(card="NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"), (256, 2048), id="mig-by-name"
        ),
        pytest.param(
            EngineSetting(card="Custom", card_memory_bytes=79.6 * GIBIBYTE),
            (1024, 8192),
            id="by-memory",
        ),
        pytest.param(
            EngineSetting(card="NVIDIA H100 80GB HBM3", version=(0, 7)), (256, 2048), id="old"
        ),
        pytest.param(
            EngineSetting(card="NVIDIA H100 80GB HBM3", version=(0, 8)), (1024, 8192), id="named"
        ),
        pytest.param(EngineSetting(card="NVIDIA B200", version=(0, 8)), (256, 2048), id="unnamed"),
        pytest.param(
            EngineSetting(card="NVIDIA H200", version=(0, 8), part_of_card=True),
            (256, 2048),
            id="part-of-a-named-one",
        ),
        pytest.param(EngineSetting(card="NVIDIA L4", version=(0, 8, 3)), (1024, 2048), id="many"),
        pytest.param(EngineSetting(card="NVIDIA L4", version=(0, 8, 4)), (256, 2048), id="fewer"),
        pytest.param(
            EngineSetting(card="NVIDIA H200", version=(0, 8, 1)), (1024, 8192), id="many-h200"
        ),
        pytest.param(
            EngineSetting(accelerator=True, chunked_prefill=True, version=(0, 6, 4)),
            (256, 512),
            id="small-chunks",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_model_len=65536, version=(0, 6, 3)),
            (256, 512),
            id="small-chunks-of-long-ones",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_model_len=8192, version=(0, 6, 3)),
            (256, 8192),
            id="whole-prompts-before-them",
        ),
        pytest.param(
            EngineSetting(accelerator=True, chunked_prefill=True, version=(0, 6, 5)),
            (256, 2048),
            id="larger-chunks",
        ),
        pytest.param(EngineSetting(card="NVIDIA B200", version=(0, 11)), (1024, 8192), id="older"),
        pytest.param(
            EngineSetting(accelerator=True, throughput_mode=True), (512, 4096), id="throughput"
        ),
        pytest.param(
            EngineSetting(accelerator=True, chunked_prefill=False, max_model_len=32768),
            (256, 32768),
            id="whole-prompts",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_model_len=16384, version=(0, 7)),
            (256, 16384),
            id="whole-prompts-by-default",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_model_len=65536, version=(0, 7)),
            (256, 2048),
            id="long-ones-in-chunks",
        ),
        pytest.param(
            EngineSetting(
                accelerator=True, max_model_len=16384, version=(0, 7), chunked_prefill=True
            ),
            (256, 2048),
            id="chunks-stated",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_model_len=16384, version=(0, 8)),
            (256, 2048),
            id="chunks-by-default",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_num_seqs=2, max_model_len=512),
            (2, 1024),
            id="capped-by-length",
        ),
        pytest.param(
            EngineSetting(accelerator=True, max_num_batched_tokens=64),
            (64, 64),
            id="capped-by-budget",
        ),
    ],
)
def test_defaults_are_those_of_the_engine(
    setting: EngineSetting, expected: tuple[int, int]
) -> None:
    """By card, version and flags; the smaller ones where the card is not known."""
    limits = default_limits(setting)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == expected
