"""Variables that a container's script takes from its pod.

Invariants:
1. A variable is filled in where the pod says its value, as Kubernetes and the shell do.
2. One that something else may set is not known; one that nothing sets is unset.
3. Nothing of a Secret is asked for.
4. Of a variable with several values, a limit is read if all agree, else it is unread.
"""

import pytest

from servingslo.adapters.kubernetes.pods.config_maps import NoConfigMaps, started_with
from servingslo.adapters.kubernetes.pods.launches import read_launch
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.runtimes.catalogue import profile

VLLM = profile("vllm")
SCRIPT = "vllm serve m --max-num-seqs {}"
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


class _Maps:
    """ConfigMaps with these contents; notes what it is asked for."""

    def __init__(self, **data):
        self.data_by_name = data
        self.asked = []

    async def data(self, _namespace, name, _at_seconds):
        self.asked.append(name)
        return self.data_by_name.get(name, f"GET {name}: 404 not found")


async def _read(script, maps=None, *, shell=("bash", "-c"), **container):
    item = {
        "metadata": {"namespace": "n", "name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "engine", "command": [*shell, script], **container}]},
    }
    (record,) = pod_record(item, None).containers
    line = await started_with(record, "n", maps or NoConfigMaps(), None, has_file=True)
    found = read_launch(record, line, VLLM)
    return found.arguments.max_num_seqs, found.launch.unread, found.launch.unread_limits


@pytest.mark.parametrize(
    ("value", "env", "seqs"),
    [
        pytest.param("$N", [{"name": "N", "value": "48"}], 48, id="literal"),
        pytest.param("$(N)", [{"name": "N", "value": "48"}], 48, id="of-kubernetes"),
        pytest.param(
            "$M", [{"name": "N", "value": "48"}, {"name": "M", "value": "$(N)"}], 48, id="nested"
        ),
        pytest.param(
            "$M", [{"name": "M", "value": "$(N)"}, {"name": "N", "value": "48"}], None, id="later"
        ),
        pytest.param("${N:-48}", [], 48, id="default-of-an-unset-one"),
        pytest.param("${N:-${M:-48}}", [], 48, id="default-of-a-default"),
        pytest.param("$N", [], None, id="unset-or-of-the-image"),
        pytest.param("${N:+48}", [{"name": "N", "value": "1"}], 48, id="other-of-a-set-one"),
        pytest.param("4${N:+8}", [{"name": "N", "value": ""}], 4, id="other-of-an-empty-one"),
        pytest.param("4${N+8}", [{"name": "N", "value": ""}], 48, id="other-of-a-set-empty-one"),
        pytest.param("4${N:+8}", [], None, id="other-of-an-unset-one-or-of-the-image"),
        pytest.param("${N:?}", [{"name": "N", "value": "48"}], 48, id="must-be-set"),
        pytest.param("${N:?}", [], None, id="must-be-set-and-is-not-known"),
        pytest.param("${N:-48}", [{"name": "N", "value": ""}], 48, id="default-of-an-empty-one"),
        pytest.param("${N-48}", [{"name": "N"}], None, id="empty-without-a-value"),
        pytest.param("${N:-9}", [{"name": "N", "valueFrom": SECRET}], None, id="secret"),
        pytest.param("$((N * 2))", [{"name": "N", "value": "24"}], None, id="arithmetic"),
        pytest.param(
            "$N", [{"name": "N", "value": "9"}, {"name": "N", "value": "48"}], 48, id="last-of-two"
        ),
        pytest.param(
            "$N", [{"name": "N", "value": "9"}, {"name": "N", "valueFrom": SECRET}], None,
            id="last-is-secret",
        ),
    ],
)  # fmt: skip
async def test_a_variable_is_what_the_pod_says(value, env, seqs):
    """1, 2: and where it is not known, the limit is reported with the word."""
    found, unread, fields = await _read(SCRIPT.format(value), env=env)
    assert found == seqs
    assert bool(unread) == (seqs is None)
    assert fields == (() if seqs else ("max_num_seqs",))


@pytest.mark.parametrize(
    ("env_from", "seqs"),
    [
        pytest.param([{"configMapRef": {"name": "with"}}], 64, id="map-that-sets-it"),
        pytest.param([{"configMapRef": {"name": "without"}}], 48, id="map-that-does-not"),
        pytest.param([{"configMapRef": {"name": "gone"}}], None, id="map-that-is-not-read"),
        pytest.param([{"secretRef": {"name": "with"}}], None, id="secret"),
        pytest.param(
            [{"configMapRef": {"name": "without"}}, {"secretRef": {"name": "with"}}], None,
            id="map-and-secret",
        ),
    ],
)  # fmt: skip
async def test_a_default_holds_where_nothing_sets_the_variable(env_from, seqs):
    """2, 3: a Secret may set any name; a ConfigMap says which."""
    maps = _Maps(**{"with": {"N": "64"}, "without": {"X": "1"}})
    found, unread, _ = await _read(SCRIPT.format("${N:-48}"), maps, envFrom=env_from)
    assert found == seqs
    assert bool(unread) == (seqs is None)
    assert set(maps.asked) <= {
        entry["configMapRef"]["name"] for entry in env_from if "configMapRef" in entry
    }


async def test_all_flags_in_a_variable_of_a_config_map():
    """1: split as the shell does; a value of it that is no number is not shown."""
    source = {"configMapKeyRef": {"name": "flags", "key": "all"}}
    env = [{"name": "ALL", "valueFrom": source}]
    maps = _Maps(flags={"all": "--max-num-seqs 48 --enforce-eager"})
    assert await _read("vllm serve m $ALL", maps, env=env) == (48, "", ())
    maps = _Maps(flags={"all": "--max-num-seqs hunter2"})
    found, unread, fields = await _read("vllm serve m $ALL", maps, env=env)
    assert (found, fields) == (None, ("max_num_seqs",))
    assert "hunter2" not in unread
    assert "$ALL" in unread


async def test_the_file_of_a_script_is_followed():
    """1: its path may be a variable."""
    mounts = [{"name": "v", "mountPath": "/etc/vllm"}]
    item = {
        "metadata": {"namespace": "n", "name": "p", "uid": "u"},
        "spec": {
            "volumes": [{"name": "v", "configMap": {"name": "run"}}],
            "containers": [
                {
                    "name": "engine",
                    "command": ["sh", "-c", 'exec vllm serve m --config "$DIR/run.yaml"'],
                    "env": [{"name": "DIR", "value": "/etc/vllm"}],
                    "volumeMounts": mounts,
                }
            ],
        },
    }
    (record,) = pod_record(item, None).containers
    maps = _Maps(run={"run.yaml": "max-num-seqs: 48\nenable-chunked-prefill: 'False'\n"})
    line = await started_with(record, "n", maps, None, has_file=True)
    found = read_launch(record, line, VLLM)
    assert found.arguments.max_num_seqs == 48
    assert found.launch.chunked_prefill is False


_KSERVE = """LOG="--disable-uvicorn-access-log"
V=$(vllm --version 2>/dev/null | tail -1 | awk '{print $NF}')
if [[ "$V" =~ ^[0-9]+\\.[0-9]+ ]] && [ "$(printf '%s' "0.16.0" | sort -V)" = "0.16.0" ]; then
  LOG="--disable-access-log-for-endpoints /health,/metrics"
fi
STOP=""
if [[ "$V" =~ ^[0-9] ]]; then STOP="--shutdown-timeout 15"; fi
for ((i=1; i<=30; i++)); do A=$(getent hosts head | cut -d' ' -f1); [ -n "$A" ] && break; done
eval "exec vllm serve /m --max-num-seqs 48 --data-parallel-address ${A} \\
  ${LOG} ${STOP} $@"
"""


@pytest.mark.parametrize(
    ("script", "seqs", "told"),
    [
        pytest.param(_KSERVE, 48, "", id="kserve-presets"),
        pytest.param(
            "if vllm serve --help=all | grep -q seed; then A=--seed; fi; vllm serve m"
            " --max-num-seqs 48 $A", 48, "", id="asks-for-flags",
        ),
        pytest.param(
            "if test -e /x; then A=--seed; fi; vllm serve m $A --max-num-seqs 48", 48, "",
            id="set-in-one-branch",
        ),
        pytest.param(
            'A="--max-num-seqs 48"; test -e /x && A="--max-num-seqs 9"; vllm serve m $A', None,
            "--max-num-seqs differs", id="values-differ",
        ),
        pytest.param(
            'if test -e /x; then A="--max-num-seqs 48"; fi; vllm serve m $A', None,
            "--max-num-seqs differs", id="set-or-not",
        ),
        pytest.param(
            "A=1; [ -e /x ] && A=; vllm serve m ${A:+--enable-lora --seed 4} --max-num-seqs 48",
            48, "", id="there-or-not",
        ),
        pytest.param(
            "A=1; [ -e /x ] && A=; vllm serve m ${A:+--max-num-seqs 48}", None,
            "--max-num-seqs differs", id="limit-there-or-not",
        ),
        pytest.param('A=9; A="-q $A"; vllm serve m --max-num-seqs 48 $A', 48, "", id="grows"),
        pytest.param(
            'A="--max-num-seqs 48"; for i in 1 2; do vllm serve m $A; A=; done', None, "$A",
            id="changed-by-a-loop",
        ),
        pytest.param(
            'A="--max-num-seqs 4"; while x; do B="--max-num-seqs 48"; done; vllm serve m $A $B',
            None, "--max-num-seqs may stand in '$B' again", id="given-again",
        ),
    ],
)  # fmt: skip
async def test_a_variable_has_the_values_of_every_branch(script, seqs, told):
    """4: no doubt where all of them are known and agree; never the default where they differ."""
    found, unread, fields = await _read(script)
    assert found == seqs
    assert (told in unread) if told else not unread
    assert ("max_num_seqs" in fields) == bool(told)


@pytest.mark.parametrize(
    ("script", "seqs", "unread"),
    [
        pytest.param("vllm serve m ${S:+--max-num-seqs 8}", None, True, id="tested"),
        pytest.param("vllm serve m --max-num-seqs 4 ${S+--max-num-seqs 8}", None, True, id="late"),
        pytest.param("vllm serve m --max-num-seqs 4 ${S:+--max-num-seqs=$S}", None, True, id="own"),
        pytest.param("vllm serve m ${S:+--max-num-seqs=8} --max-num-seqs 4", 4, False, id="before"),
        pytest.param("vllm serve m --max-num-seqs 4 ${S:+--enable-lora}", 4, False, id="other"),
        pytest.param("f() { echo --max-num-seqs 8; }; vllm serve m $(f)", None, True, id="output"),
        pytest.param("vllm serve m $VLLM_ARGS", None, False, id="any-flags"),
        pytest.param("/app/start.sh", None, True, id="script"),
        pytest.param("serve run app:app", None, True, id="program"),
    ],
)
async def test_a_limit_that_may_be_given_has_no_default(script, seqs, unread):
    """4: also where a word is there or not by a variable that is not known."""
    env = [{"name": "S", "valueFrom": SECRET}]
    found, _, limits = await _read(script, env=env)
    assert (found, "max_num_seqs" in limits) == (seqs, unread)


async def test_the_words_behind_a_script_are_its_parameters():
    """1: each by itself, all together, and through a variable."""
    words = ["start", "--max-num-seqs", "48"]
    for script in ('vllm serve m "$@"', "vllm serve m $1 $2", 'A="$@"; vllm serve m $A $3'):
        assert (await _read(script, args=words))[:2] == (48, "")
    assert "$@" in (await _read('shift; vllm serve m "$@"', args=words))[1]


async def test_what_is_known_whatever_a_variable_holds_is_not_doubted():
    """Both outcomes of a test are literal, and an unset variable has no flags."""
    script = "A=-x; test -f f && A=; vllm serve m ${A-} ${B-} --max-num-seqs 48"
    found = await _read(script, env=[{"name": "S", "valueFrom": SECRET}])
    assert found == (48, "", ())


@pytest.mark.parametrize(
    ("line", "known"),
    [
        pytest.param("printf -vA 9", False, id="option-with-its-name"),
        pytest.param("printf '-v' \"$N\" 9", False, id="name-of-a-variable"),
        pytest.param("\\read A", False, id="escaped"),
        pytest.param('"read" A', False, id="quoted"),
        pytest.param("command -p read A", False, id="behind-an-option"),
        pytest.param("R=read; $R A", False, id="named-by-a-variable"),
        pytest.param("$UNKNOWN A", False, id="named-by-what-is-not-known"),
        pytest.param("O=-p; command $O read A", False, id="option-of-a-variable"),
        pytest.param("declare -n B=A; B=9", False, id="reference"),
        pytest.param("exec {A}>/dev/null", False, id="descriptor"),
        pytest.param("{F}>/dev/null read A", False, id="behind-a-descriptor"),
        pytest.param("E=echo; $E A", True, id="sets-none"),
        pytest.param("command -v vllm && printf '%s' \"$N\"", True, id="asks-and-prints"),
        pytest.param('"read" B', True, id="another"),
    ],
)
async def test_what_may_set_a_variable_is_seen_however_it_is_written(line, known):
    """2: quoted, behind options, or by a name that is only known when it runs."""
    found, unread, _ = await _read(f"A=8; {line}; vllm serve m --max-num-seqs $A")
    assert (found, bool(unread)) == ((8, False) if known else (None, True))
