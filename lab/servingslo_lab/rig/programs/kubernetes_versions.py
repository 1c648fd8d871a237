"""Kubernetes of other versions than the rig's own, as Go modules that are built in the same way."""

import re
from collections.abc import Sequence
from pathlib import Path

from servingslo_lab.errors import RigError
from servingslo_lab.rig.programs import versions
from servingslo_lab.rig.programs.cache import cache_directory
from servingslo_lab.rig.programs.commands import CommandRunner
from servingslo_lab.rig.programs.toolchain import find_go

# The newest patch that the Go module proxy served on 2026-11-29.
PATCHES = {
    "1.30": "1.30.14",
    "1.31": "1.31.14",
    "1.32": "1.32.13",
    "1.33": "1.33.13",
    "1.34": "1.34.4",
    "1.35": "1.35.4",
    "1.36": versions.KUBE_APISERVER.version,
    "1.37": "1.37.2",
}
_TIMEOUT_SECONDS = 900
# Of some thirty parts of Kubernetes a proxy has one or two not in each patch.
_MOST_GAPS = 20
_SAMPLES = ("sample-apiserver", "sample-cli-plugin", "sample-controller")


def kubernetes_tools(minor: str, runner: CommandRunner) -> Sequence[versions.Tool]:
    """API server, controller manager and scheduler of a version such as ``1.30``.

    Raises: RigError if the version is unknown, or one of its modules cannot be fetched.
    """
    if minor not in PATCHES:
        raise RigError(f"version: {minor!r} is not known; allowed: {', '.join(PATCHES)}")
    patch = PATCHES[minor]
    if patch == versions.KUBE_APISERVER.version:
        return versions.KUBERNETES_TOOLS
    root = cache_directory() / "modules"
    module = f"kubernetes-{patch}"
    names = [tool.name for tool in versions.KUBERNETES_TOOLS]
    if not (root / module / "complete").exists():
        (root / module).mkdir(parents=True, exist_ok=True)
        _Module(patch, root / module, runner).write([f"k8s.io/kubernetes/cmd/{n}" for n in names])
    return [versions.kubernetes_tool(name, module=module, root=root) for name in names]


class _Module:
    """A go.mod and go.sum by which Kubernetes' own commands are built from outside its tree."""

    def __init__(self, patch: str, folder: Path, runner: CommandRunner) -> None:
        self._patch, self._folder, self._runner = patch, folder, runner
        self._go = find_go(
            cache_directory(), sources=[versions.KUBE_APISERVER.source_directory], runner=runner
        )

    def write(self, packages: Sequence[str]) -> None:
        """Write both files. Raises: RigError if a module is not served."""
        text = self._of_kubernetes()
        for _ in range(_MOST_GAPS):
            (self._folder / "go.mod").write_text(text, encoding="utf-8")
            try:
                self._ask("list", "-mod=mod", "-deps", "-f={{with .Error}}{{.}}{{end}}", *packages)
            except RigError as error:
                text = self._with_former(text, error)
            else:
                (self._folder / "complete").touch()
                return
        raise RigError(f"kubernetes {self._patch}: more than {_MOST_GAPS} modules are not served")

    def _of_kubernetes(self) -> str:
        """Kubernetes' own go.mod, with its parts as the modules that they are published as.

        Source: kubernetes/kubernetes, staging/README.md: part v0.y.z is of Kubernetes v1.y.z.
        """
        asked = self._ask("mod", "download", "-json", f"k8s.io/kubernetes@v{self._patch}")
        found = re.search(r'"GoMod": "(.+)"', "\n".join(asked))
        if found is None:
            raise RigError(f"kubernetes {self._patch}: go names no go.mod of it")
        text = Path(found[1]).read_text(encoding="utf-8")
        text = re.sub(
            r"^module .*", "module servingslo.dev/rig/kubernetes", text, flags=re.MULTILINE
        )
        text = re.sub(r"^\s*k8s\.io/sample-\S+ .*\n", "", text, flags=re.MULTILINE)
        part = f"v0.{self._patch.partition('.')[2]}"
        text = re.sub(r"=> \./staging/src/(\S+)", rf"=> \1 {part}", text)
        unused = "".join(f"exclude k8s.io/{name} v0.0.0\n" for name in _SAMPLES)
        return f"{text}\nrequire k8s.io/kubernetes v{self._patch}\n{unused}"

    def _with_former(self, text: str, error: RigError) -> str:
        """The go.mod with the next lower patch of the part that is not served.

        Raises: the error itself, if it is another, or no lower patch is listed.
        """
        gap = re.search(r"k8s\.io/([\w-]+)@(v0\.\d+\.)(\d+): reading", str(error))
        if gap is None:
            raise error
        part, series, patch = gap.groups()
        listed = " ".join(self._ask("list", "-m", "-versions", f"k8s.io/{part}"))
        of_series = map(int, re.findall(rf" {re.escape(series)}(\d+)\b", listed))
        lower = [one for one in of_series if one < int(patch)]
        if not lower:
            raise error
        wanted = f"=> k8s.io/{part} {series}"
        return text.replace(f"{wanted}{patch}\n", f"{wanted}{max(lower)}\n")

    def _ask(self, *arguments: str) -> list[str]:
        return self._runner.run(
            "kubernetes",
            [str(self._go), *arguments],
            log_path=cache_directory() / "logs" / f"kubernetes-{self._patch}.log",
            timeout_seconds=_TIMEOUT_SECONDS,
            working_directory=self._folder,
        )
