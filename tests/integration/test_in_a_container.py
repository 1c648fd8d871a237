"""What a container is and a shell is not: a user without a name, and the first process."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tests.integration.operator_under_test import Operator, install_chart

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import free_port, wait_until

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")
WITHOUT_A_NAME = (
    "env", *(f"--unset={name}" for name in NAMES),
    "unshare", "--user", "--map-user=65532", "--map-group=65532",
)  # fmt: skip
AS_FIRST_PROCESS = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
# Of the chart's pods.
GRACE_SECONDS = 15.0


def _needs(prefix: tuple[str, ...]) -> None:
    if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine lets us make no user namespace")


def test_a_user_without_a_name_runs_the_operator(rig: Rig, audited: None) -> None:
    """It becomes ready, and ends in order."""
    _needs(WITHOUT_A_NAME)
    install_chart(rig)
    operator = Operator(rig, name="operator-nameless", prefix=WITHOUT_A_NAME)
    operator.start()
    operator.stop()
    assert operator.process is not None
    assert operator.process.exit_status == 0, operator.process.log_tail()


def test_the_first_process_obeys_sigterm_while_it_waits_for_the_cluster(tmp_path: Path) -> None:
    """The kernel drops what process 1 does not handle; it ends within its grace period."""
    _needs(AS_FIRST_PROCESS)
    config = tmp_path / "kubeconfig"
    cluster = {"server": f"https://127.0.0.1:{free_port()}", "insecure-skip-tls-verify": True}
    context = {"name": "x", "context": {"cluster": "x", "user": "x"}}
    document = {
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": cluster}],
        "users": [{"name": "x", "user": {"token": "x"}}],
        "contexts": [context],
    }
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*AS_FIRST_PROCESS, sys.executable, "-m", "servingslo.cli", "run",
             "--prometheus-url=http://127.0.0.1:9"],
            env={**os.environ, "KUBECONFIG": str(config)},
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(
            lambda: "waiting" in log.read_text(encoding="utf-8"),
            what="it waits for the API server",
            timeout_seconds=60,
        )
        begin = time.monotonic()
        os.killpg(process.pid, signal.SIGTERM)
        status = process.wait(timeout=60)
        assert time.monotonic() - begin < GRACE_SECONDS
        assert status == 128 + signal.SIGTERM
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
