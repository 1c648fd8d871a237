"""A real Triton Inference Server with models whose time for each batch size is known.

The server and its Python backend come from a published wheel, checked by hash. They are only for
tests and no part of the operator's image. It needs the system's libpython3.11 and no GPU.
"""

import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.processes import ManagedProcess, ProcessFamily
from servingslo_lab.rig.programs.cache import cache_directory, cache_lock
from servingslo_lab.rig.programs.toolchain import installer
from servingslo_lab.rig.programs.versions import LOCK, TOOLS_DIRECTORY
from servingslo_lab.rig.waiting import free_port

PYTHON = "3.11"
"""Python version of the used backend stub; the wheel has one for each version of Python."""
LABEL = "Triton (wheels)"
_INSTALL_TIMEOUT_SECONDS = 900
_KEY_LENGTH = 12
_PINS = TOOLS_DIRECTORY / "triton" / LOCK
_CONFIG = """\
name: "{name}"
backend: "python"
max_batch_size: {largest_batch}
input [{{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }}]
output [{{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }}]
instance_group [{{ count: {instances} kind: KIND_CPU }}]
dynamic_batching {{
  max_queue_delay_microseconds: {window_microseconds}
  default_queue_policy {{ max_queue_size: {queue_size} }}
}}
"""
# The stub ignores PYTHONPATH, and with numpy 2 and above every answer is an error.
_MODEL = """\
import json
import sys
import time

sys.path.insert(0, {libraries})
import triton_python_backend_utils as utils

SECONDS = json.loads({seconds})


class TritonPythonModel:
    def execute(self, requests):
        taken = [utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        time.sleep(SECONDS[sum(len(one) for one in taken) - 1])
        return [utils.InferenceResponse([utils.Tensor("y", one)]) for one in taken]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonModel:
    """A model that sleeps for a known time.

    seconds: durations of batches of 1, 2, ... window_microseconds: how long the first request of a
    batch waits for others. queue_size: requests that may wait, 0 for any number. largest_batch: of
    its configuration; 0 for the number of durations.
    """

    name: str
    seconds: tuple[float, ...]
    window_microseconds: int = 0
    queue_size: int = 0
    instances: int = 1
    largest_batch: int = 0


def affine(fixed_seconds: float, per_request_seconds: float, largest: int) -> tuple[float, ...]:
    """T(b) = fixed + per request·b for each batch size up to the largest."""
    return tuple(fixed_seconds + per_request_seconds * size for size in range(1, largest + 1))


def missing_for_triton() -> str:
    """Requirements that this machine lacks; '' if it has all."""
    if f"{sys.version_info.major}.{sys.version_info.minor}" != PYTHON:
        return f"Python {PYTHON} is needed, this is {sys.version.split()[0]}"
    try:
        ctypes.CDLL(f"libpython{PYTHON}.so.1.0")
    except OSError as error:
        return str(error)
    return ""


def ensure_triton() -> Path:
    """The folder with the content of the wheels; installed into the rig's cache if missing.

    Raises: RigError when it cannot be installed.
    """
    with cache_lock():
        if not installed_at().is_dir():
            install()
    return installed_at()


def installed_at() -> Path:
    """The folder of the installation, existing or not."""
    key = hashlib.sha256(_PINS.read_bytes()).hexdigest()[:_KEY_LENGTH]
    return cache_directory() / f"triton-{key}"


def install() -> None:
    """Install the wheels, checked by hash; the caller must hold the cache's lock.

    Raises: RigError when they cannot be installed.
    """
    with tempfile.TemporaryDirectory(dir=cache_directory()) as scratch:
        wheels = Path(scratch) / "wheels"
        options = ["--require-hashes", "--only-binary=:all:", "-r", str(_PINS)]
        try:
            subprocess.run(
                [*installer(), "--target", str(wheels), *options],
                check=True,
                timeout=_INSTALL_TIMEOUT_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RigError(f"triton: its wheels cannot be installed: {error}") from error
        shutil.move(wheels, installed_at())


class TritonServer:
    """One server with these models, on its own address."""

    def __init__(
        self,
        *,
        work_dir: Path,
        family: ProcessFamily,
        models: Sequence[TritonModel],
        address: str = "127.0.0.1",
        port: int | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        installed = ensure_triton()
        package = installed / "pytriton" / "tritonserver"
        # Another pod soon gets the same address, so the folder has a unique name.
        self.directory = Path(tempfile.mkdtemp(prefix=f"triton-{address}-", dir=work_dir))
        backends = self.directory / "backends" / "python"
        shutil.copytree(package / "backends" / "python", backends)
        stub = "triton_python_backend_stub"
        shutil.copy(package / "python_backend_stubs" / PYTHON / stub, backends / stub)
        (backends / stub).chmod(0o755)
        for model in models:
            self._write(model, installed)
        self.address = address
        http, metrics = port or free_port(), free_port()
        self.url = f"http://{address}:{http}"
        self.ready_url = f"{self.url}/v2/health/ready"
        self.metrics_url = f"http://{address}:{metrics}/metrics"
        program = package / "bin" / "tritonserver"
        program.chmod(0o755)
        self.process: ManagedProcess = family.add(
            self.directory.name,
            [
                str(program),
                f"--model-repository={self.directory / 'models'}",
                f"--backend-directory={self.directory / 'backends'}",
                "--model-control-mode=explicit",
                *(f"--load-model={model.name}" for model in models),
                f"--http-address={address}",
                f"--http-port={http}",
                "--allow-grpc=false",
                f"--metrics-address={address}",
                f"--metrics-port={metrics}",
                "--exit-timeout-secs=3",
                *flags,
            ],
            environment=self._environment(installed),
        )

    def start(self) -> None:
        """Start it and wait until its models are loaded. Raises: RigError when they are not."""
        self.process.start()
        self.process.wait_ready(self.ready_url)

    def _write(self, model: TritonModel, installed: Path) -> None:
        directory = self.directory / "models" / model.name
        (directory / "1").mkdir(parents=True)
        config = _CONFIG.format(
            name=model.name,
            largest_batch=model.largest_batch or len(model.seconds),
            instances=model.instances,
            window_microseconds=model.window_microseconds,
            queue_size=model.queue_size,
        )
        (directory / "config.pbtxt").write_text(config, encoding="utf-8")
        seconds = repr(json.dumps(model.seconds))
        code = _MODEL.format(libraries=repr(str(installed)), seconds=seconds)
        (directory / "1" / "model.py").write_text(code, encoding="utf-8")

    def _environment(self, installed: Path) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": str(installed / "nvidia_pytriton.libs")}
