"""llm-d-inference-sim behind pods: a program that we did not write and that speaks like vLLM.

It has no model: it waits for as long as its flags say, and exports vLLM's metrics.
Source: llm-d/llm-d-inference-sim v0.10.2, docs/configuration.md and docs/latency-simulation.md.
"""

import json
import random
from collections.abc import Callable

from servingslo_lab.rig.build import ensure_tools
from servingslo_lab.rig.pod_servers import Place, Question
from servingslo_lab.rig.programs.versions import LLM_D_SIM
from servingslo_lab.rig.waiting import free_port


class LlmDSim:
    """One simulator with the arguments of its pod, at a port of its own.

    It has no flag for an address and listens on all of them, so pods cannot share a port.
    """

    def __init__(self, place: Place) -> None:
        port = free_port()
        self.address = place.address
        self.url = f"http://{place.address}:{port}"
        self.ready_url = f"{self.url}/health/ready"
        self.metrics_url = f"{self.url}/metrics"
        program = ensure_tools((LLM_D_SIM,))[LLM_D_SIM.name]
        self.process = place.family.add(
            f"{LLM_D_SIM.name}-{place.address}-{port}",
            [str(program), f"--port={port}", *place.arguments],
            # Without it there is no simulated KV cache.
            environment={"POD_IP": place.address},
        )


def completion(
    model: str, prompt_words: tuple[int, int], output_tokens: tuple[int, int]
) -> Callable[[random.Random], Question]:
    """Makes streamed requests with uniform lengths between these bounds."""

    def question(numbers: random.Random) -> Question:
        # Random words: equal prompts would be served from its prefix cache.
        words = (f"w{numbers.randrange(10**6)}" for _ in range(numbers.randint(*prompt_words)))
        length = numbers.randint(*output_tokens)
        body = {
            "model": model,
            "prompt": " ".join(words),
            "max_tokens": length,
            "ignore_eos": True,
            "stream": True,
        }
        return Question("/v1/completions", json.dumps(body), length)

    return question
