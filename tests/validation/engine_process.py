"""A real vLLM on a tiny model without weights, started from another Python environment."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.processes import ManagedProcess
from servingslo_lab.rig.waiting import free_port, http_get

MODEL_NAME = "tiny"
VOCABULARY_COUNT = 2000
# Ids below are special tokens.
FIRST_PLAIN_TOKEN = 4
_LOG_NAME = "vllm"
_CORE_NAME = "VLLM::Engine"
_READY_TIMEOUT_SECONDS = 300.0
# One chunk for the first token and one at the end: a chunk for each token would cost the client and
# the server's front end more processor time than the tiny model takes.
_STREAM_INTERVAL = 100_000


def _data_type() -> str:
    """bfloat16 where the processor has arithmetic for it: elsewhere an answer takes ten seconds.

    Source: oneDNN, "Data Types": bf16 needs AVX-512 on x86, and the bf16 extension on Arm.
    """
    words = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    return "bfloat16" if {"avx512bw", "bf16"} & set(words) else "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine's size and limits; a limit of None is the engine's own default.

    python: of an environment that has vLLM. nice: added to the engine's scheduling priority.
    threads: of the model's arithmetic. kv_cache_gibibytes: a whole number for the CPU build.
    core_share: what the engine core is held to of one core, None for whatever it gets.
    """

    python: Path
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    hidden: int = 512
    layers: int = 6
    max_model_len: int = 2048
    kv_cache_gibibytes: int = 1
    threads: int = 1
    nice: int = 5
    data_type: str = field(default_factory=_data_type)
    core_share: float | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `vllm serve` that a pod of this engine would have."""
        return (
            f"--served-model-name={MODEL_NAME}",
            "--load-format=dummy",
            f"--dtype={self.data_type}",
            f"--max-model-len={self.max_model_len}",
            *_flag("--max-num-seqs", self.max_num_seqs),
            *_flag("--max-num-batched-tokens", self.max_num_batched_tokens),
            f"--stream-interval={_STREAM_INTERVAL}",
            "--enforce-eager",
            # One process for scheduler and model: two of them poll each other and fill two cores.
            "--distributed-executor-backend=uni",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreTime:
    """Seconds on a core, and seconds in which a thread could have run but had no core."""

    ran_seconds: float
    waited_seconds: float


class Vllm:
    """A running vLLM; it ends with the rig."""

    def __init__(self, rig: Rig, settings: EngineSettings, folder: Path) -> None:
        write_model(settings, folder)
        self.port = free_port()
        words = ("serve", str(folder), *settings.arguments)
        self.process = start_vllm(rig, _LOG_NAME, settings, words, "127.0.0.1", self.port)
        self.process.wait_for(
            self.healthy, what="vLLM answers", timeout_seconds=_READY_TIMEOUT_SECONDS
        )
        hold_core(rig, "core-share", settings, self.process)

    @property
    def address(self) -> str:
        """host:port of its HTTP server."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of its HTTP server."""
        return f"http://{self.address}"

    def healthy(self) -> bool:
        """Whether it answers."""
        return http_get(f"{self.url}/health") is not None

    def page(self) -> str:
        """Its metrics page as it is now."""
        return http_get(f"{self.url}/metrics", timeout_seconds=10.0) or ""

    def core_time(self) -> CoreTime:
        """What its processes and threads got of the machine so far, and what they waited for."""
        return core_time(self.process)


def start_vllm(
    rig: Rig,
    name: str,
    settings: EngineSettings,
    words: Sequence[str],
    address: str,
    port: int,
) -> ManagedProcess:
    """Start `vllm` with these words as a process of the rig; it does not answer yet."""
    command = [
        "nice", f"-n{settings.nice}", str(settings.python), "-m", "vllm.entrypoints.cli.main",
        *words, f"--host={address}", f"--port={port}",
    ]  # fmt: skip
    environment = {
        # Nothing is fetched: configuration and tokenizer are in the folder.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Otherwise the CPU build replaces the executor of one process by that of several.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gibibytes),
        # The kernel may move the threads to a free core.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
    }
    return rig.run_process(name, command, environment=environment)


def hold_core(
    rig: Rig, name: str, settings: EngineSettings, process: ManagedProcess
) -> ManagedProcess | None:
    """Hold the engine core of a vLLM to the stated share of a core; None where none is stated."""
    if settings.core_share is None:
        return None
    words = (sys.executable, "-m", "tests.validation.core_share")
    return rig.run_process(name, [*words, str(_core_pid(process)), str(settings.core_share)])


def _core_pid(process: ManagedProcess) -> int:
    """The process that schedules and computes. Raises: RigError when there is none."""
    for pid in _group(process.pid or 0):
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
        if name.startswith(_CORE_NAME):
            return pid
    raise RigError(f"vLLM runs no process named {_CORE_NAME}")


def core_time(process: ManagedProcess) -> CoreTime:
    """What its processes and threads got of the machine so far, and what they waited for."""
    tasks = [
        _core_time(task)
        for pid in _group(process.pid or 0)
        for task in Path(f"/proc/{pid}/task").glob("*")
    ]
    return CoreTime(
        ran_seconds=sum(task.ran_seconds for task in tasks),
        waited_seconds=sum(task.waited_seconds for task in tasks),
    )


def write_model(settings: EngineSettings, folder: Path) -> None:
    """A small Llama's configuration and a tokenizer of one word for each id; no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    head = 64
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": settings.hidden,
        "intermediate_size": 4 * settings.hidden,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.hidden // head,
        "num_key_value_heads": max(settings.hidden // head // 4, 1),
        "head_dim": head,
        "vocab_size": VOCABULARY_COUNT,
        "max_position_embeddings": settings.max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": settings.data_type,
    }
    special = ("<unk>", "<s>", "</s>", "<pad>")
    words = [*special, *(f"w{number}" for number in range(len(special), VOCABULARY_COUNT))]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number, "content": word, "single_word": False, "lstrip": False,
                "rstrip": False, "normalized": False, "special": True,
            }
            for number, word in enumerate(special)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": special[0],
        },
    }  # fmt: skip
    names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), special, strict=True))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": settings.max_model_len,
        **names,
    }
    for name, document in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", tokenizer_config),
        ("special_tokens_map.json", names),
    ):
        (folder / name).write_text(json.dumps(document), encoding="utf-8")


def _flag(name: str, value: int | None) -> tuple[str, ...]:
    return () if value is None else (f"{name}={value}",)


def _group(leader: int) -> Sequence[int]:
    """Processes of this group; empty where the system does not tell."""
    if sys.platform != "linux":
        return ()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == leader:
                found.append(int(folder.name))
        except ProcessLookupError:
            continue
    return found


def _core_time(task: Path) -> CoreTime:
    """Of one thread, from Linux's schedstat: nanoseconds on a core, nanoseconds in its queue."""
    try:
        ran, waited, _ = (task / "schedstat").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return CoreTime(ran_seconds=0.0, waited_seconds=0.0)
    return CoreTime(ran_seconds=int(ran) / 1e9, waited_seconds=int(waited) / 1e9)
