"""Step times of measured kernels, read out of a published package into `step_times.json`.

`PYTHON -m tests.silicon.read`, with a Python (3.11 to 3.13) that has `aiconfigurator-core` 0.12.0:
`python -m venv V && V/bin/pip install aiconfigurator-core==0.12.0` (82 MB, Apache-2.0: NVIDIA's
measurements of kernels of vLLM 0.24, composed into steps by its authors' model). No GPU is used.
One row for each card, model and number of GPUs (tensor parallel) whose weights fit.
"""

import contextlib
import io
import json
import logging
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STEP_TIMES = HERE / "step_times.json"
# The grid of every row. Without a sequence that decodes, a step prefills one prompt.
SEQUENCES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 2048, 8192)
PREFILLS = (0, 64, 256, 512, 1024, 2048, 4096)
# Name here, name in the package.
CARDS = {
    "a100": "a100_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "l40s": "l40s",
    "rtx-pro-6000": "rtx_pro_6000_server",
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
# At most so many times the fewest GPUs that hold the weights.
MOST_TIMES_LEAST = 2
_FP4_BYTES = 0.53125  # four bits, and a scale of eight for 32 of them: OCP Microscaling 1.0
_BF16_BYTES, _FP8_BYTES = 2.0, 1.0
# Share of a card that vLLM uses, and what its graphs and activations take of it.
# Source: vLLM, --gpu-memory-utilization; `other_mem` in the package's systems/*.yaml.
USED_RATIO, RESERVE_BYTES = 0.9, 3_758_096_384
# Least tokens of KV cache with which a replica serves anything.
LEAST_TOKENS = 16_384


def model_figures(config: dict[str, Any], name: str) -> dict[str, float]:
    """Parameters (all, and of one token's path), bytes of weights, and KV bytes of a token.

    Source: the model's config.json; K. Vaswani et al. for the shapes of a layer.
    """
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or hidden // heads
    experts = config.get("num_experts") or config.get("num_local_experts") or 0
    inner = (config.get("moe_intermediate_size") or 0) or config["intermediate_size"]
    attention = 2 * hidden * head * (heads + kv_heads)
    vocabulary = config["vocab_size"] * hidden * 2
    expert = 3 * hidden * inner
    at_once = config.get("num_experts_per_tok", 1)
    rest = vocabulary + layers * attention
    total, active = rest + layers * expert * max(experts, 1), rest + layers * expert * at_once
    dense = _FP8_BYTES if name.endswith("fp8") else _BF16_BYTES
    of_expert = _FP4_BYTES if "oss" in name else dense
    return {
        "parameters": total,
        "active": active,
        "weights": rest * dense + (total - rest) * of_expert,
        "kv_bytes": 2 * layers * kv_heads * head * _BF16_BYTES,
    }


def main() -> None:
    """Read every card and model. Raises: ImportError without the package."""
    import aiconfigurator_core
    import yaml
    from aiconfigurator_core.sdk.engine import EngineHandle

    logging.disable(logging.CRITICAL)
    package = Path(aiconfigurator_core.__file__).parent
    cards, models, rows, missing = {}, {}, [], []
    for name, path in MODELS.items():
        file = package / "model_configs" / f"{path.replace('/', '--')}_config.json"
        models[name] = model_figures(json.loads(file.read_text()), name)
    for card, system in CARDS.items():
        read = yaml.safe_load((package / "systems" / f"{system}.yaml").read_text())
        gpu = read["gpu"]
        cards[card] = {
            "memory": gpu["mem_capacity"],
            "bandwidth": gpu["mem_bw"],
            "flops": gpu["bfloat16_tc_flops"],
            "link": read["node"]["intra_node_bw"],
        }
        for name, path in MODELS.items():
            least = 0
            for gpus in GPUS:
                tokens = kv_tokens(models[name], cards[card]["memory"], gpus)
                least = least or (gpus if tokens >= LEAST_TOKENS else 0)
                if not least or gpus > MOST_TIMES_LEAST * least:
                    continue
                parts = {"moe_tp_size": gpus} if _has_experts(models[name]) else {}
                try:
                    with contextlib.redirect_stdout(io.StringIO()):
                        engine = EngineHandle.compile(path, system, "vllm", tp_size=gpus, **parts)
                        times = _times(engine)
                except (ValueError, RuntimeError, KeyError) as error:
                    missing.append(f"{card} {name} x{gpus}: {str(error)[:80]}")
                    continue
                rows.append({"card": card, "model": name, "gpus": gpus, "milliseconds": times})
    document = {
        "source": "aiconfigurator-core 0.12.0 (Apache-2.0), vLLM 0.24",
        "sequences": SEQUENCES,
        "contexts": CONTEXTS,
        "prefills": PREFILLS,
        "cards": cards,
        "models": models,
    }
    head = ",\n".join(f'"{key}":{json.dumps(value)}' for key, value in document.items())
    body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    STEP_TIMES.write_text(f'{{{head},\n"rows":[\n{body}\n]}}\n', encoding="utf-8")
    sys.stdout.write("\n".join([f"{len(rows)} rows", *missing]) + "\n")


def kv_tokens(model: dict[str, float], memory: float, gpus: int) -> float:
    """Tokens that the KV cache of these GPUs holds; below 0 if the weights do not fit."""
    room = gpus * (memory * USED_RATIO - RESERVE_BYTES) - model["weights"]
    return room / model["kv_bytes"]


def _has_experts(model: dict[str, float]) -> bool:
    return model["active"] < model["parameters"]


def _times(engine: Any) -> list[float]:
    """Milliseconds by sequences, contexts and prefilled tokens, in the order of the grid."""
    alone = [engine.predict_prefill_latency(1, tokens) for tokens in PREFILLS[1:]]
    steps = [
        engine.mixed_step_latency(tokens, count, context, 2)
        if tokens
        else engine.decode_step_latency(count, context, 2)
        for count in SEQUENCES[1:]
        for context in CONTEXTS
        for tokens in PREFILLS
    ]
    return [float(f"{value:.4g}") for value in (*alone, *steps)]


if __name__ == "__main__":
    main()
