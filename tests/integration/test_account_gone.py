"""After `helm uninstall` the API server refuses whoever still runs with the release's account."""

import kubernetes
from tests.integration.operator_under_test import (
    RELEASE_NAMESPACE,
    SERVICE_ACCOUNT,
    Operator,
    install_chart,
)

from servingslo_lab.rig.cluster import Rig
from servingslo_lab.rig.waiting import wait_until

# A watch is refused when it is next begun; kopf begins one every 15 s.
PATIENCE_SECONDS = 90


def test_a_process_whose_account_is_gone_ends_with_one_line(rig: Rig) -> None:
    """The reason, once, and not a traceback for each watch that was refused."""
    install_chart(rig)
    running = Operator(rig, name="account-gone")
    running.start()
    core = kubernetes.client.CoreV1Api(rig.api_client())
    try:
        core.delete_namespaced_service_account(SERVICE_ACCOUNT, RELEASE_NAMESPACE)
        wait_until(
            lambda: not running.process.running,
            what="the process ends",
            timeout_seconds=PATIENCE_SECONDS,
        )
    finally:
        running.stop()
        install_chart(rig)
    log = running.process.log_path.read_text(encoding="utf-8")
    assert running.process.exit_status == 1
    assert "Traceback" not in log
    (reason,) = [line for line in log.splitlines() if "credentials" in line]
    assert reason.startswith("error: the API server refuses this process's credentials (401)")
