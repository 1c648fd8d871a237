"""A command line that is made of ConfigMaps: which are meant, what they say, and what is not said.

Invariants:
1. Nothing of a Secret is asked for, whatever refers to it.
2. What cannot be read is named by ConfigMap and key, never by content, and loses nothing else.
3. However often it is asked, a ConfigMap is read once a minute at most.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servingslo.adapters.clock import SystemClock
from servingslo.adapters.kubernetes.pods import config_maps
from servingslo.adapters.kubernetes.pods.config_maps import ConfigMaps, NoConfigMaps, started_with
from servingslo.adapters.kubernetes.pods.records import ContainerRecord, pod_record
from servingslo.errors import PermissionDeniedError
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.launch.arguments import parse_batch_arguments
from servingslo.runtimes.launch.config_file import LARGEST_FILE_CHARACTERS, config_file
from servingslo.runtimes.launch.settings import parse_launch_arguments
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS

VLLM = profile("vllm")
FILE = "max-num-seqs: 96\nmax_num_batched_tokens: 8k\nenable-chunked-prefill: false\n"
STARTED = 1_767_323_100.0  # 2026-01-02T03:05:00Z


def _container(*args, env=(), env_from=(), mounts=(), volumes=(), command=(), **fields):
    item = {
        "metadata": {"namespace": "team", "name": "chat-1", "uid": "1"},
        "spec": {
            "volumes": list(volumes),
            "containers": [
                {
                    "name": "vllm",
                    "command": list(command),
                    "args": list(args),
                    "env": list(env),
                    "envFrom": list(env_from),
                    "volumeMounts": list(mounts),
                    **fields,
                }
            ],
        },
    }
    (found,) = pod_record(item, None).containers
    return found


def _from_map(name, key, config_map="limits"):
    source = {"configMapKeyRef": {"name": config_map, "key": key}}
    return {"name": name, "valueFrom": source}


def _volume(config_map="vllm", **fields):
    return {"name": "v", "configMap": {"name": config_map, **fields}}


class _Client:
    """An API server with these ConfigMaps, which counts what it is asked for."""

    def __init__(self, **data):
        self.data = {name.replace("_", "-"): value for name, value in data.items()}
        self.paths = []
        self.changed = "2026-01-02T03:00:00Z"

    async def get(self, path):
        self.paths.append(path)
        prefix, name = path.rsplit("/", 1)
        assert prefix == "/api/v1/namespaces/team/configmaps"
        if name not in self.data:
            raise PermissionDeniedError(f"GET {path}: 403 forbidden")
        entry = {"manager": "helm", "time": self.changed}
        return {
            "metadata": {"creationTimestamp": self.changed, "managedFields": [entry]},
            "data": self.data[name],
        }


async def _limits(container, client, at_seconds=STARTED):
    found = await started_with(container, "team", ConfigMaps(client), at_seconds, has_file=True)
    read = parse_batch_arguments(found.command, found.args, VLLM, found.config)
    return (read.max_num_seqs, read.max_num_batched_tokens), found.unread


MOUNT = {"name": "v", "mountPath": "/etc/vllm"}
ON_FILE = {"name": "v", "mountPath": "/etc/vllm/run.yaml", "subPath": "run.yaml"}
PROJECTED = {"name": "v", "projected": {"sources": [{"configMap": {"name": "vllm"}}]}}


@pytest.mark.parametrize(
    ("args", "fields"),
    [
        pytest.param(["--config", "/etc/vllm/run.yaml"], {}, id="absolute"),
        pytest.param(["--config", "run.yaml"], {"workingDir": "/etc/vllm"}, id="relative"),
        pytest.param(["--config", "/etc/vllm/run.yaml"], {"mounts": [ON_FILE]}, id="sub-path"),
        pytest.param(
            ["--config", "/etc/vllm/a/b.yaml"],
            {"volumes": [_volume(items=[{"key": "run.yaml", "path": "a/b.yaml"}])]},
            id="items",
        ),
        pytest.param(["--config", "/etc/vllm/run.yaml"], {"volumes": [PROJECTED]}, id="projected"),
        pytest.param(
            ["--config", "$(FILE)"],
            {"env": [{"name": "FILE", "value": "/etc/vllm/run.yaml"}]},
            id="by-a-variable",
        ),
    ],
)
async def test_a_file_in_a_mounted_config_map_gives_limits(args, fields):
    """Wherever the file comes from in the container, its settings are those of the engine."""
    container = _container(
        "serve", "m", *args, **{"volumes": [_volume()], "mounts": [MOUNT], **fields}
    )
    found, unread = await _limits(container, _Client(vllm={"run.yaml": FILE}))
    assert found == (96, 8000)
    assert unread == ""


async def test_the_command_line_wins_over_its_file():
    """As in vLLM: the file's words come first; and what else it sets counts for the defaults."""
    container = _container(
        "--max-num-seqs=16", "--config", "/etc/vllm/run.yaml", volumes=[_volume()], mounts=[MOUNT]
    )
    client = _Client(vllm={"run.yaml": FILE + "performance-mode: throughput\n"})
    assert await _limits(container, client) == ((16, 8000), "")
    found = await started_with(container, "team", ConfigMaps(client), None, has_file=True)
    launch = parse_launch_arguments(found.command, found.args, VLLM, found.config)
    assert launch.chunked_prefill is False
    assert launch.throughput_mode
    assert parse_launch_arguments(container.command, container.args, VLLM).flags == (
        "max_num_seqs",
    )


@pytest.mark.parametrize(
    ("env", "env_from", "seqs"),
    [
        pytest.param([_from_map("SEQS", "seqs")], [], 32, id="key"),
        pytest.param([], [{"configMapRef": {"name": "all"}}], 64, id="whole"),
        pytest.param(
            [], [{"configMapRef": {"name": "prefixed"}, "prefix": "SE"}], 128, id="with-a-prefix"
        ),
        pytest.param(
            [],
            [{"configMapRef": {"name": "all"}}, {"configMapRef": {"name": "later"}}],
            65,
            id="the-later-of-two",
        ),
        pytest.param(
            [_from_map("SEQS", "seqs")], [{"configMapRef": {"name": "all"}}], 32, id="env-wins"
        ),
        pytest.param(
            [{"name": "SEQS", "value": "8"}],
            [{"configMapRef": {"name": "all"}}],
            8,
            id="a-literal-wins",
        ),
        pytest.param(
            [{"name": "SEQS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            [{"configMapRef": {"name": "all"}}],
            None,
            id="a-secret-wins-and-stays-unknown",
        ),
    ],
)
async def test_variables_of_config_maps_are_those_that_kubernetes_sets(env, env_from, seqs):
    """Single keys, whole maps with a prefix, and who wins where several set one name."""
    client = _Client(
        limits={"seqs": "32"}, all={"SEQS": "64"}, later={"SEQS": "65"}, prefixed={"QS": "128"}
    )
    container = _container("--max-num-seqs=$(SEQS)", env=env, env_from=env_from)
    found, unread = await _limits(container, client)
    assert found[0] == seqs
    assert unread == ""


async def test_nothing_of_a_secret_is_asked_for():
    """Variables, whole Secrets and files of Secrets: no request; the file is said to be unknown."""
    secret = {"secretRef": {"name": "s"}}
    container = _container(
        "--max-num-seqs=$(SEQS)",
        "--config",
        "/etc/vllm/run.yaml",
        env=[{"name": "SEQS", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        env_from=[secret],
        mounts=[MOUNT],
        volumes=[{"name": "v", "secret": {"secretName": "s"}}],
    )
    client = _Client()
    found, unread = await _limits(container, client)
    assert found == (None, None)
    assert unread == "the file of --config is in no ConfigMap"
    assert client.paths == []


PASSWORD = "hunter2"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(f"a: [{PASSWORD}\nb: 1", "is no YAML at line 2", id="syntax"),
        pytest.param(f"- {PASSWORD}", "is no mapping of settings", id="list"),
        pytest.param(PASSWORD, "is no mapping of settings", id="word"),
        pytest.param("", "is no mapping of settings", id="empty"),
        pytest.param(f"a: !!python/name:{PASSWORD}", "is no YAML at line 1", id="tag"),
        pytest.param("[" * 9_000, "has more than 64 brackets open at once", id="brackets"),
        pytest.param("? " * 8_000, "is no YAML", id="depth"),
        pytest.param("a: \x07", "is no YAML", id="bell"),
        pytest.param("a: " + "9" * 5000, "is no YAML", id="digits"),
        pytest.param("a: !!int ''", "is no YAML", id="empty number"),
        pytest.param("a: !!bool maybe", "is no YAML", id="neither true nor false"),
        pytest.param("a: !!timestamp soon", "is no YAML", id="no time"),
        pytest.param("#" * (LARGEST_FILE_CHARACTERS + 1), "is longer than", id="length"),
    ],
)
async def test_a_bad_file_is_named_without_its_content_and_loses_nothing_else(text, problem):
    """Limits of the command line stay; ConfigMap, key and place are told."""
    container = _container(
        "--max-num-seqs=16", "--config", "/etc/vllm/run.yaml", volumes=[_volume()], mounts=[MOUNT]
    )
    found, unread = await _limits(container, _Client(vllm={"run.yaml": text}))
    assert found == (16, None)
    assert unread.startswith(f"key run.yaml of ConfigMap vllm {problem}")
    assert PASSWORD not in unread


@given(st.text(max_size=200))
def test_no_file_ends_the_reading(text):
    """Whatever stands in a file: words, or a problem."""
    read = config_file(text)
    assert all(isinstance(word, str) for word in read.words)
    assert not (read.words and read.problem)


def test_merge_keys_are_not_followed():
    """Thirty of them would unfold to a thousand million settings."""
    text = "m0: &m0 {max-num-seqs: 8}\n" + "".join(
        f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}]}}\n" for n in range(1, 30)
    )
    assert config_file(text).problem == "has merge keys (<<), which are not followed"


def test_lists_and_mappings_are_not_written_out():
    """A file whose aliases unfold to more than memory holds is read in no time."""
    text = "a0: &a0 [x, x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 60)
    )
    assert config_file(text + "max-num-seqs: 8\n").words == ("--max-num-seqs", "8")


@pytest.mark.parametrize(
    ("data", "unread"),
    [
        pytest.param({}, "ConfigMap limits: GET /api", id="forbidden"),
        pytest.param({"limits": {}}, "ConfigMap limits has no key seqs", id="no-key"),
    ],
)
async def test_what_cannot_be_read_is_named(data, unread):
    """The ConfigMap and the key, or the API server's words; the other limit is read."""
    container = _container(
        "--max-num-seqs=$(SEQS)", "--max-num-batched-tokens=512", env=[_from_map("SEQS", "seqs")]
    )
    found, told = await _limits(container, _Client(**data))
    assert found == (None, 512)
    assert told.startswith(unread)


async def test_where_reading_is_off_it_says_so():
    """The flag that turns it on is named; a container that refers to none says nothing."""
    container = _container("--max-num-seqs=$(SEQS)", env=[_from_map("SEQS", "seqs")])
    found = await started_with(container, "team", NoConfigMaps(), None, has_file=True)
    assert found.unread == (
        "ConfigMap limits: the operator may not read ConfigMaps (--read-config-maps)"
    )
    plain = _container("--max-num-seqs=8", env=[_from_map("UNUSED", "x")])
    assert plain.config_maps is None
    assert (await started_with(plain, "team", NoConfigMaps(), None, has_file=True)).unread == ""


async def test_a_config_map_is_read_once_a_minute(monkeypatch):
    """Also one that is forbidden, and by however many pods it is asked for."""
    now = 1000.0
    monkeypatch.setattr(SystemClock, "elapsed_seconds", staticmethod(lambda: now))
    client = _Client(limits={"seqs": "8"})
    maps = ConfigMaps(client)
    for second in range(121):
        now = 1000.0 + second
        assert await maps.data("team", "limits", None) == {"seqs": "8"}
        assert "403" in await maps.data("team", "other", None)
    assert len(client.paths) == 2 * 3


async def test_a_pod_has_what_stood_there_when_it_started(monkeypatch):
    """After a change older pods keep theirs; those from before what is known are not guessed at."""
    now = 0.0
    monkeypatch.setattr(SystemClock, "elapsed_seconds", staticmethod(lambda: now))
    client = _Client(limits={"seqs": "8"})
    maps = ConfigMaps(client)
    assert await maps.data("team", "limits", STARTED) == {"seqs": "8"}
    before = await maps.data("team", "limits", STARTED - 3600)
    assert before == "it was changed after the container started"
    client.data["limits"], client.changed = {"seqs": "9"}, "2026-01-02T04:00:00Z"
    now = config_maps.READ_AGAIN_SECONDS
    assert await maps.data("team", "limits", STARTED) == {"seqs": "8"}
    assert await maps.data("team", "limits", STARTED + 7200) == {"seqs": "9"}
    assert await maps.data("team", "limits", None) == {"seqs": "9"}
    # Written anew with the same content: nothing changed.
    client.changed = "2026-01-02T09:00:00Z"
    now *= 2
    assert await maps.data("team", "limits", STARTED + 7200) == {"seqs": "9"}


async def test_what_was_read_outlasts_a_refusal(monkeypatch):
    """While the API server is away, containers still run with what they were started with."""
    now = 0.0
    monkeypatch.setattr(SystemClock, "elapsed_seconds", staticmethod(lambda: now))
    client = _Client(limits={"seqs": "8"})
    maps = ConfigMaps(client)
    await maps.data("team", "limits", None)
    client.data.clear()
    now = config_maps.READ_AGAIN_SECONDS
    assert await maps.data("team", "limits", None) == {"seqs": "8"}
    assert len(client.paths) == 2


async def test_the_file_of_another_runtime_is_not_followed():
    """Only the file of a runtime that is known to read it as vLLM does counts."""
    plain = ContainerRecord(
        name="engine", image="i", command=(), args=("--config", "/etc/settings.yaml")
    )
    found = await started_with(plain, "team", NoConfigMaps(), None, has_file=False)
    assert (found.config, found.unread) == ((), "")
    assert found.args == plain.args


async def test_what_a_namespace_holds_beyond_its_share_is_not_remembered(monkeypatch):
    """Else one tenant would fill the memory that everybody's operator lives in."""
    monkeypatch.setattr(config_maps, "MOST_CHARACTERS", 100)
    client = _Client(first={"seqs": "a" * 50}, second={"seqs": "b" * 50})
    maps = ConfigMaps(client)
    assert await maps.data("team", "first", None) == {"seqs": "a" * 50}
    told = "those of this namespace hold more than 100 characters"
    assert await maps.data("team", "second", None) == told
    client.data["second"] = {"seqs": "b"}
    clock = SystemClock.elapsed_seconds() + 61.0
    monkeypatch.setattr(SystemClock, "elapsed_seconds", lambda: clock)
    assert await maps.data("team", "second", None) == {"seqs": "b"}
    client.data["first"] = {"seqs": "c" * 45}
    clock += 61.0
    assert await maps.data("team", "first", None) == {"seqs": "c" * 45}
    clock += 2 * config_maps.FORGOTTEN_SECONDS
    await maps.data("team", "second", None)
    assert maps._held == {"team": 5}


async def test_a_value_is_kept_as_far_as_it_can_count():
    """A longer one is too long for a variable and for a file, whatever follows."""
    maps = ConfigMaps(_Client(limits={"seqs": "9" * 10**6}))
    kept = (await maps.data("team", "limits", None))["seqs"]
    assert len(kept) == LONGEST_LINE_CHARACTERS + 1


async def test_a_container_of_very_many_config_maps_asks_for_none():
    """Each would be a request within the tick of everybody."""
    client = _Client()
    sources = [{"configMapRef": {"name": f"m{number}"}} for number in range(33)]
    container = _container("--max-num-seqs=$(SEQS)", env_from=sources)
    _, unread = await _limits(container, client)
    assert unread == "variables are taken from 33 ConfigMaps, more than 32"
    assert client.paths == []
