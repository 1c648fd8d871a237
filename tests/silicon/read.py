"""Step times of measured kernels, read out of a published package into `step_times.json`.

`PYTHONPATH=operator V/bin/python -m tests.silicon.read` where V has the package: `python -m venv V
&& V/bin/pip install aiconfigurator-core==0.12.0` (82 MB, Apache-2.0: NVIDIA's measurements of
kernels of vLLM 0.24, composed into steps by its authors' model). No GPU is used. A row for each
card, model and number of GPUs (tensor parallel).
"""

import contextlib
import io
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiconfigurator_core  # type: ignore[import-not-found]
import yaml
from aiconfigurator_core.sdk.engine import EngineHandle  # type: ignore[import-not-found]
from tests.silicon.tables import CONTEXTS, PREFILLS, SEQUENCES, STEP_TIMES

from servingslo.models.known_engines import Card, Model, kv_tokens

# Name here, name in the package. The last two have no measured kernels, only figures.
CARDS = {
    "a100": "a100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
    "a100-pcie": "a100_pcie",
    "gb300": "gb300",
    "h100-pcie": "h100_pcie",
    "l4": "l4",
}
MODELS = {
    "gpt-oss-120b": "openai/gpt-oss-120b",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-8b": "meta-llama/Meta-Llama-3.1-8B",
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3-30b-a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "qwen3-8b": "Qwen/Qwen3-8B",
}
GPUS = (1, 2, 4, 8)
# At most so many times the fewest GPUs that hold the weights and this many tokens.
MOST_TIMES_LEAST, LEAST_TOKENS = 2, 16_384
# Weights of 16 bits; experts of gpt-oss have four, and a scale of eight for 32 of them.
# Source: OCP Microscaling Formats 1.0.
_BF16_BYTES, _FP4_BYTES = 2.0, 0.53125


def model_of(name: str, config: dict[str, Any]) -> Model:
    """The figures of a model, from its config.json: the shapes of vLLM's layers."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or hidden // heads
    experts = config.get("num_experts") or config.get("num_local_experts") or 1
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    at_once = config.get("num_experts_per_tok", 1)
    rest = 2 * hidden * (config["vocab_size"] + layers * head * (heads + kv_heads))
    expert = layers * 3 * hidden * inner
    expert_bytes = _FP4_BYTES if "oss" in name else _BF16_BYTES
    return Model(
        name=name,
        parameters=rest + expert * experts,
        active=rest + expert * at_once,
        weights=rest * _BF16_BYTES + expert * experts * expert_bytes,
        kv_bytes=2 * layers * kv_heads * head * _BF16_BYTES,
    )


def card_of(name: str, system: dict[str, Any]) -> Card:
    """The figures of a card, as the package has them from NVIDIA's data sheets."""
    gpu = system["gpu"]
    return Card(
        name=name,
        memory=gpu["mem_capacity"],
        bandwidth=gpu["mem_bw"],
        flops=gpu["bfloat16_tc_flops"],
        link=system["node"]["intra_node_bw"],
    )


def main() -> None:
    """Read every card and model; what the package has no kernels for is printed."""
    logging.disable(logging.CRITICAL)
    package = Path(aiconfigurator_core.__file__).parent
    cards, models, rows, missing = [], [], [], []
    for name, path in MODELS.items():
        file = package / "model_configs" / f"{path.replace('/', '--')}_config.json"
        models.append(model_of(name, json.loads(file.read_text(encoding="utf-8"))))
    for name, system in CARDS.items():
        text = (package / "systems" / f"{system}.yaml").read_text(encoding="utf-8")
        cards.append(card_of(name, yaml.safe_load(text)))
    for card in cards:
        for model in models:
            for gpus in _counts(card, model):
                parts = {"moe_tp_size": gpus} if model.has_experts else {}
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        path, system = MODELS[model.name], CARDS[card.name]
                        engine = EngineHandle.compile(path, system, "vllm", tp_size=gpus, **parts)
                        times = _times(engine)
                except (ValueError, RuntimeError) as error:
                    missing.append(f"{card.name} {model.name} x{gpus}: {str(error)[:70]}")
                    continue
                rows.append({"card": card.name, "model": model.name, "gpus": gpus, "ms": times})
    document = {
        "source": "aiconfigurator-core 0.12.0 (Apache-2.0), kernels of vLLM 0.24",
        "cards": [asdict(card) for card in cards],
        "models": [asdict(model) for model in models],
    }
    head = ",\n".join(f'"{key}":{json.dumps(value)}' for key, value in document.items())
    body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    STEP_TIMES.write_text(f'{{{head},\n"rows":[\n{body}\n]}}\n', encoding="utf-8")
    sys.stdout.write("\n".join([f"{len(rows)} rows", *missing]) + "\n")


def _counts(card: Card, model: Model) -> list[int]:
    fitting = [gpus for gpus in GPUS if kv_tokens(model, card, gpus) >= LEAST_TOKENS]
    return [gpus for gpus in fitting if gpus <= MOST_TIMES_LEAST * fitting[0]]


def _times(engine: Any) -> list[float]:
    """Milliseconds in the order of the grid."""
    alone = [engine.predict_prefill_latency(1, tokens) for tokens in PREFILLS[1:]]
    steps = [
        engine.mixed_step_latency(tokens, count, context, 2)
        if tokens
        else engine.decode_step_latency(count, context, 2)
        for count in SEQUENCES
        for context in CONTEXTS
        for tokens in PREFILLS
    ]
    return [float(f"{value:.4g}") for value in (*alone, *steps)]


if __name__ == "__main__":
    main()
