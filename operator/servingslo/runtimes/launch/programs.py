"""Find containers that name a runtime: by their program, its flags, or their image.

A pod often has several containers: proxies of a mesh or of sign-on, agents, the engine. The engine
names its runtime in its command line or its image. A proxy names at most the engine's address.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePosixPath

from servingslo.runtimes.launch.arguments import command_words
from servingslo.runtimes.launch.command_line import is_shell, passes_on
from servingslo.runtimes.profile import RuntimeProfile


class Naming(IntEnum):
    """How certainly a container names a runtime.

    SCRIPT: its image names it, and it starts a script, which may start the engine or not. IMAGE:
    it uses the start command of the image. COMMAND: its command line starts the runtime.
    """

    NOT_AT_ALL = 0
    SCRIPT = 1
    IMAGE = 2
    COMMAND = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """How one runtime's server is started.

    executables: names of the program, each with the word that must follow it, '' for any.
    modules: Python modules, submodules included. flags: those that no other program has, besides
    the flags of its limits. images: words of an image's path.
    """

    executables: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


# Source: the manuals of vllm serve, sglang.launch_server, trtllm-serve and tritonserver, and the
# workers of NVIDIA Dynamo (components/src/dynamo), which start these engines in their own process.
_PROGRAMS = {
    "vllm": Program(
        executables=(("vllm", "serve"),),
        modules=("vllm", "dynamo.vllm"),
        flags=("--gpu-memory-utilization", "--tensor-parallel-size", "--max-model-len"),
        images=("vllm",),
    ),
    "sglang": Program(
        executables=(("sglang", "serve"),),
        modules=("sglang", "dynamo.sglang"),
        flags=("--mem-fraction-static",),
        images=("sglang",),
    ),
    "triton": Program(
        executables=(("tritonserver", ""),),
        flags=("--model-repository", "--model-control-mode"),
        images=("tritonserver",),
    ),
    "trtllm": Program(
        executables=(("trtllm-serve", ""),),
        modules=("tensorrt_llm", "dynamo.trtllm"),
        flags=("--kv_cache_free_gpu_memory_fraction",),
        images=("trtllm", "tensorrt-llm", "tensorrt_llm"),
    ),
}
# Programs of the same project other than the engine: vllm-router, sglang-router, …
_BESIDE_THE_ENGINE = frozenset(
    {"adapter", "agent", "bench", "benchmark", "client", "controller", "downloader", "epp"}
    | {"exporter", "frontend", "gateway", "loader", "operator", "proxy", "router", "scheduler"}
    | {"sidecar", "ui", "webhook", "auth", "metrics", "monitor", "watcher"}
)
# A program may follow these words, although they begin with a dash.
_BEFORE_PROGRAM = frozenset({"--", "-s", "-e", "--allow-run-as-root"})


def naming(
    command: Sequence[str], args: Sequence[str], image: str | None, profile: RuntimeProfile
) -> Naming:
    """How certainly a container with this command line and image runs the runtime."""
    if _starts_runtime(command, args, profile):
        return Naming.COMMAND
    if not _image_names(image or "", profile) or _starts_another(command):
        return Naming.NOT_AT_ALL
    return Naming.SCRIPT if command else Naming.IMAGE


def start_unseen(
    command: Sequence[str], args: Sequence[str], image: str | None, profile: RuntimeProfile
) -> str:
    """Why the program that gets the args is not known; '' if it is, or nothing depends on it."""
    known = profile.starts_in_image is not None and profile.starts_in_image(image)
    if command or known or not profile.knobs:
        return ""
    started = _starts_program(command_words((), args), _program(profile))
    # An administrator's own engine has flags, and no start command to compare with.
    if args and not profile.starts:
        started = _image_names(image or "", profile) or _starts_runtime((), args, profile)
    return "" if started else f"the start command of image {image} is not seen"


def _starts_runtime(command: Sequence[str], args: Sequence[str], profile: RuntimeProfile) -> bool:
    """Whether a command line starts the runtime's server, or has flags that only it has."""
    program, words = _program(profile), command_words(command, args)
    # A script that is not read names its engine all the same.
    words = words or [part for word in (*command, *args) for part in word.split()]
    return _starts_program(words, program) or any(_is_flag(w, program, profile) for w in words)


def _starts_program(words: Sequence[str], program: Program) -> bool:
    return any(
        _is_executable(words, at, program) or _is_module(words, at, program)
        for at in range(len(words))
    )


def _program(profile: RuntimeProfile) -> Program:
    """How a runtime is started; for one added by the administrator, from its name and flags."""
    own = Program(executables=((profile.name, "serve"),), images=(profile.name,))
    return _PROGRAMS.get(profile.name, own)


def _is_executable(words: Sequence[str], at: int, program: Program) -> bool:
    word, before = words[at], words[at - 1] if at else ""
    if before.startswith("-") and before not in _BEFORE_PROGRAM and "/" not in word:
        # It is the value of a flag: `--backend tritonserver` of a client.
        return False
    after = words[at + 1] if at + 1 < len(words) else ""
    name = PurePosixPath(word).name
    return any(
        name == executable and next_word in ("", after)
        for executable, next_word in program.executables
    )


def _is_module(words: Sequence[str], at: int, program: Program) -> bool:
    word, before = words[at], words[at - 1] if at else ""
    name = word
    if before != "-m":
        # The file of a module: python /app/vllm/entrypoints/openai/api_server.py.
        path = PurePosixPath(word)
        if path.suffix != ".py" or not path.stem:
            return False
        folders = path.with_suffix("").parts
        return any(module in folders[:-1] for module in program.modules)
    return any(name == module or name.startswith(f"{module}.") for module in program.modules)


def _is_flag(word: str, program: Program, profile: RuntimeProfile) -> bool:
    name = word.partition("=")[0]
    if not name.startswith("--"):
        return False
    if profile.underscores_in_flags:
        name = name.replace("_", "-")
    queue = profile.queue_knob
    limits = {knob.flag for knob in profile.knobs} | ({queue.flag} if queue is not None else set())
    return name in limits or name in program.flags


def _starts_another(command: Sequence[str]) -> bool:
    """Whether the command, which replaces the image's own, starts another program."""
    if not command:
        return False
    name = PurePosixPath(command[0]).name
    if is_shell(name) or passes_on(name):
        # Another module is another program; a script is unknown.
        return "-m" in command[:3]
    return not name.endswith((".sh", ".py"))


def _image_names(image: str, profile: RuntimeProfile) -> bool:
    """Whether the path of an image, without registry, tag and digest, has the runtime's name."""
    path = image.partition("@")[0].lower()
    registry, slash, rest = path.partition("/")
    if slash and ("." in registry or ":" in registry or registry == "localhost"):
        path = rest
    path = path.partition(":")[0]
    words = re.split(r"[/_.-]", path)
    if _BESIDE_THE_ENGINE.intersection(words):
        return False
    names = _program(profile).images
    return any(name in (words if name.isalnum() else path) for name in names)
