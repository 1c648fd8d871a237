"""Processes of the rig are logged, stopped together, and never outlive their family."""

import base64
import re
import signal
import socket
import stat

import pytest
import yaml

from servingslo_lab.errors import RigError
from servingslo_lab.rig.kubernetes import credentials, kwok
from servingslo_lab.rig.processes import ProcessFamily, uninterrupted
from servingslo_lab.rig.prometheus import ScrapePlan
from servingslo_lab.rig.waiting import free_port, http_get, http_post, wait_until


@pytest.fixture
def family(tmp_path):
    """A family of processes that is stopped after the test."""
    members = ProcessFamily(work_dir=tmp_path, remove_work_dir=False)
    yield members
    members.stop()


def test_output_of_a_process_is_in_its_log(family):
    """Both output streams end up in the log file of the process."""
    process = family.add("talker", ["sh", "-c", "echo out; echo err >&2"])
    process.start()
    wait_until(lambda: not process.running, what="end of the process")
    assert process.log_tail().splitlines() == ["out", "err"]
    assert process.exit_status == 0
    assert process.pid is None


def test_process_that_ends_early_is_explained(family):
    """Waiting for a process that ended names it, its status and the end of its log."""
    process = family.add("broken", ["sh", "-c", "echo bad flag; exit 3"])
    process.start()
    with pytest.raises(RigError, match=r"broken: ended with status 3[\s\S]*bad flag"):
        process.wait_for(lambda: False, what="ready")


def test_process_that_stays_unready_is_explained(family):
    """Waiting has an end, and says what was waited for."""
    process = family.add("slow", ["sleep", "60"])
    process.start()
    with pytest.raises(RigError, match=r"slow: timed out after 0\.1 s: ready"):
        process.wait_for(lambda: False, what="ready", timeout_seconds=0.1)


def test_missing_program_is_explained(family):
    """A program that is not there is an error of the rig."""
    with pytest.raises(RigError, match="ghost: cannot run"):
        family.add("ghost", ["no-such-program"]).start()


def test_name_of_a_running_process_is_taken(family):
    """Two running processes cannot share a name and its log; after the end they can."""
    process = family.add("one", ["sleep", "60"])
    process.start()
    with pytest.raises(RigError, match="running already"):
        family.add("one", ["sleep", "60"])
    with pytest.raises(RigError, match="already running"):
        process.start()
    process.stop()
    family.add("one", ["true"])


def test_process_that_ignores_the_request_to_end_is_killed(family):
    """SIGTERM comes first, SIGKILL when it did not help."""
    process = family.add("stubborn", ["sh", "-c", "trap '' TERM; echo up; sleep 60 & wait; wait"])
    process.start()
    process.wait_for(lambda: "up" in process.log_tail(), what="trap is set")
    process.stop(timeout_seconds=0.2)
    assert process.exit_status == -signal.SIGKILL


def test_process_that_does_not_run_cannot_be_paused(family):
    """Pausing nothing is an error, never silently a healthy process."""
    with pytest.raises(RigError, match="idle: not running"):
        family.add("idle", ["sleep", "60"]).pause()


def test_paused_process_can_be_stopped(family):
    """A frozen process still ends on request."""
    process = family.add("frozen", ["sleep", "60"])
    process.start()
    process.pause()
    process.stop()
    assert process.exit_status == -signal.SIGTERM


def test_environment_of_a_process_extends_ours(family, monkeypatch):
    """A process sees this program's variables and those given for it."""
    monkeypatch.setenv("INHERITED", "a")
    process = family.add("env", ["sh", "-c", "echo $INHERITED$OWN"], environment={"OWN": "b"})
    process.start()
    wait_until(lambda: not process.running, what="end of the process")
    assert process.log_tail() == "ab"


def test_family_stops_everything_and_may_be_stopped_twice(tmp_path):
    """After stop no member runs."""
    family = ProcessFamily(work_dir=tmp_path, remove_work_dir=False)
    for name in ("a", "b"):
        family.add(name, ["sleep", "60"]).start()
    members = family.members
    family.stop()
    family.stop()
    assert not any(process.running for process in members.values())
    assert members["a"].exit_status == -signal.SIGKILL


def test_wait_until_returns_when_true_and_names_what_it_waited_for():
    """The check decides; the message says what did not happen."""
    answers = iter([False, False, True])
    wait_until(lambda: next(answers), what="third time", interval_seconds=0.0)
    with pytest.raises(RigError, match=r"timed out after 0 s: the moon"):
        wait_until(lambda: False, what="the moon", timeout_seconds=0)


def test_free_port_is_free_and_below_the_range_of_outgoing_connections():
    """The port can be bound, and no outgoing connection will take it during an outage."""
    port = free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
    assert port < 32768


def test_nobody_listening_is_no_answer_and_a_clear_error():
    """Reading gives None, sending raises."""
    url = f"http://127.0.0.1:{free_port()}/"
    assert http_get(url) is None
    with pytest.raises(RigError, match="POST"):
        http_post(url)


def test_signing_key_is_a_p256_key_that_only_its_owner_reads(tmp_path):
    """The file holds one SEC1 structure: version 1, 32 secret bytes, the curve's name."""
    path = tmp_path / "key.pem"
    credentials.write_signing_key(path)
    first = path.read_text()
    credentials.write_signing_key(path)
    assert path.read_text() != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    match = re.search(r"BEGIN EC PRIVATE KEY-----\n(.*)\n-----END", first, re.DOTALL)
    der = base64.b64decode(match.group(1))
    assert der[:2] == bytes([0x30, len(der) - 2])
    assert der[2:7] == bytes.fromhex("0201010420")
    assert der[-10:] == bytes.fromhex("06082a8648ce3d030107")


def test_kubeconfig_names_server_authority_token_and_namespace(tmp_path):
    """A kubeconfig has all that a client needs, and only its owner reads it."""
    authority = tmp_path / "ca.crt"
    path = credentials.write_kubeconfig(
        tmp_path / "sub" / "config",
        server="https://127.0.0.1:1",
        certificate_authority=authority,
        token="secret",
        namespace="inference",
    )
    config = yaml.safe_load(path.read_text())
    cluster = config["clusters"][0]["cluster"]
    assert cluster == {"server": "https://127.0.0.1:1", "certificate-authority": str(authority)}
    assert config["users"][0]["user"] == {"token": "secret"}
    assert config["contexts"][0]["context"]["namespace"] == "inference"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_scrape_plan_becomes_a_configuration():
    """Engines come by discovery at the scrape interval, other programs by address."""
    plan = ScrapePlan(
        http_sd_url="http://127.0.0.1:1/sd",
        scrape_interval_seconds=0.5,
        static_targets={"operator": ["127.0.0.1:2"]},
    )
    config = plan.as_config()
    assert config["global"]["scrape_interval"] == "500ms"
    by_name = {job["job_name"]: job for job in config["scrape_configs"]}
    assert by_name["engines"]["http_sd_configs"] == [
        {"url": "http://127.0.0.1:1/sd", "refresh_interval": "500ms"}
    ]
    assert by_name["operator"]["static_configs"] == [{"targets": ["127.0.0.1:2"]}]
    assert ScrapePlan().as_config()["scrape_configs"] == []


@pytest.mark.parametrize(
    "annotation",
    [
        kwok.READY_DELAY_ANNOTATION,
        kwok.READY_JITTER_ANNOTATION,
        kwok.STOP_DELAY_ANNOTATION,
        kwok.LIFETIME_ANNOTATION,
        kwok.FAILURE_ANNOTATION,
    ],
)
def test_stages_read_every_annotation(annotation):
    """Each annotation that tests may set is used by a stage, not only described in a comment."""
    stages = [stage["spec"] for stage in yaml.safe_load_all(kwok.STAGES.read_text())]
    assert any(annotation in str(stage) for stage in stages)


def test_node_without_gpus_has_no_gpu_resource():
    """Zero GPUs leave the resource out, as on a machine without the device plugin."""
    manifest = kwok.node_manifest("n", gpu_count=0, labels={"pool": "cpu"})
    assert kwok.GPU_RESOURCE not in manifest["status"]["allocatable"]
    assert manifest["metadata"]["labels"]["pool"] == "cpu"
    manifest = kwok.node_manifest("n", gpu_count=4, labels={}, gpu_resource="amd.com/gpu")
    assert manifest["status"]["allocatable"]["amd.com/gpu"] == "4"


def test_an_interrupt_waits_until_a_new_process_is_known() -> None:
    """Ctrl-C in the middle of a start is held back, not lost."""
    finished = False

    def interrupted() -> None:
        nonlocal finished
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            finished = True

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert finished
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
