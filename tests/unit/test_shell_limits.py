"""What a tenant may give the reader of command lines: 32 kB in all, and little more comes of it.

Each case took seconds, or all memory, of the one process that reads everybody's pods. Beyond the
limit the line is reported as not read, and no limit is assumed from it.
"""

import gc
import time

import pytest

from servingslo.adapters.kubernetes.pods.config_maps import started_with
from servingslo.adapters.kubernetes.pods.launches import read_launch
from servingslo.adapters.kubernetes.pods.records import pod_record
from servingslo.policy.inputs import LIMIT_FIELDS
from servingslo.runtimes.catalogue import profile
from servingslo.runtimes.shell.words import LONGEST_LINE_CHARACTERS

VLLM = profile("vllm")
# Twenty times what the longest takes here: processor time of a machine whose cores are shared.
MOST_SECONDS = 1.0
TOO_LONG = f"with the variables in them, are longer than {LONGEST_LINE_CHARACTERS} characters"
TOO_MUCH = "the shell script: its words get too long"
NAMES = [f"V{i}" for i in range(3500)]
USED = " ".join(f"${name}" for name in NAMES)


class _Maps:
    def __init__(self, data):
        self._data = data

    async def data(self, _namespace, _name, _at_seconds):
        return self._data


def _env(values):
    return [{"name": name, "value": value} for name, value in values.items()]


def _chain(count, value):
    """Variables of which each has the one before it in its value."""
    return _env({"A0": "x" * 1000} | {f"A{i}": value.format(i - 1) for i in range(1, count)})


def _script(text, **fields):
    return {"command": ["bash", "-c", text], **fields}


async def _read(data, **fields):
    item = {
        "metadata": {"namespace": "n", "name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "vllm", **fields}]},
    }
    (container,) = pod_record(item, None).containers
    started = await started_with(container, "n", _Maps(data), None, has_file=True)
    return container, read_launch(container, started, VLLM).launch


async def _told(data=None, **fields):
    await _read(None, **_script("vllm serve m"))  # The first of all loads tables.
    gc.disable()  # What a collection takes depends on what other tests hold.
    before = time.process_time()
    found = await _read(data, **fields)
    taken_seconds = time.process_time() - before
    gc.enable()
    assert taken_seconds < MOST_SECONDS
    return found


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        pytest.param({"args": ["serve", "m"] + ["--x"] * 300_000}, TOO_LONG, id="words"),
        pytest.param(
            _script(USED, env=_env(dict.fromkeys(NAMES, "a b " * 80))), TOO_LONG, id="variables"
        ),
        pytest.param(
            _script("$(S)", env=_env({"S": "vllm serve m; " * 80_000})), TOO_LONG, id="a-variable"
        ),
        pytest.param(
            {"args": ["serve", "$(A9999)"], "env": _chain(10_000, "$(A{})")}, TOO_LONG, id="chain"
        ),
        pytest.param(
            {"args": ["serve", "$(A99)"], "env": _chain(100, "$(A{0})$(A{0})")},
            TOO_LONG,
            id="doubling",
        ),
        pytest.param(
            _script(f"A='{'x ' * 7000}'; vllm serve m{' $A' * 3900}"), TOO_MUCH, id="split-words"
        ),
        pytest.param(
            _script(f"A='{'x ' * 7000}'; B={'$A' * 9000}; vllm serve m"), TOO_MUCH, id="assigned"
        ),
        pytest.param(
            _script(f"A='{'x ' * 7000}'; eval \"{'vllm serve $A;' * 200}\""), TOO_MUCH, id="eval"
        ),
        pytest.param(
            _script("".join(f"test $X && A{i}=$A{i - 1}; vllm $A{i};" for i in range(1, 400))),
            "it runs more than 256 commands",
            id="branches",
        ),
        pytest.param(_script("if x; then A=$A$A; fi;" * 400 + "vllm $A"), TOO_MUCH, id="grows"),
        pytest.param(_script(";" * 30_000), "it has more than 4000 words", id="tokens"),
        pytest.param(_script("${A:-" * 5_000 + "}" * 5_000), "nested too deeply", id="nested"),
        pytest.param(_script("vllm serve " + "$((" * 10_000), "is not closed", id="arithmetic"),
    ],
)
async def test_more_than_the_limit_is_not_read(fields, says):
    """Nor is it kept: a record holds no more than the limit."""
    container, launch = await _told(**fields)
    assert says in launch.unread
    assert set(launch.unread_limits) == set(LIMIT_FIELDS)
    assert sum(map(len, container.environment.values())) <= LONGEST_LINE_CHARACTERS


async def test_what_a_config_map_gives_counts_as_well():
    """Only what the line needs of it; the rest may be long."""
    whole = [{"configMapRef": {"name": "m"}}]
    _, launch = await _told(
        dict.fromkeys(NAMES, "a b " * 80), **_script(f"vllm serve {USED}", envFrom=whole)
    )
    assert TOO_LONG in launch.unread
    unused = {f"U{i}": "x" * 1000 for i in range(900)}
    given = {**unused, "FLAGS": "--max-num-seqs $(SEQS) $SEQS", "SEQS": "7"}
    _, launch = await _told(
        given, **_script('eval "vllm serve m --max-num-seqs $SEQS # $FLAGS"', envFrom=whole)
    )
    assert launch.unread == ""


async def test_a_long_script_within_the_limit_is_read():
    """With branches and variables, as real ones have."""
    steps = "".join(f'F{i}={i}; if [ -n "$X{i}" ]; then echo $F{i}; fi;\n' for i in range(100))
    _, launch = await _told(**_script(f"{steps}exec vllm serve m --max-num-seqs 7"))
    assert "longer" not in launch.unread
