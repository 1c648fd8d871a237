"""Command lines of engines as people write them, made at random."""

from random import Random

from tests.property.command_lines import KNOWN, Case

_HALF = 0.5
_SHARE_OF_LITERAL = 0.8
_SHARE_OF_PARAMETERS = 0.1


def _lines(text: str) -> tuple[str, ...]:
    """A variant a line; @@ is a newline in it."""
    rows = (row.strip().replace("@@", "\n") for row in text.splitlines() if row.strip())
    return tuple("" if row == "<nothing>" else row for row in rows)


# One value, 48 in whatever way.
_LITERAL = _lines(
    r"""
    48
    "48"
    '48'
    4'8'
    4\8
    $N
    "$N"
    ${N}
    "${N}"
    ${N:-9}
    ${N-9}
    ${U:-48}
    "${U:-48}"
    ${U-48}
    ${EMPTY:-48}
    ${U:-$N}
    ${U:-${N}}
    """
)
# The same, not known before it runs, or in a way that is not read.
_UNKNOWN = _lines(
    r"""
    $(echo 48)
    `echo 48`
    $SECRET
    "$SECRET"
    ${SECRET:-9}
    ${N%x}
    ${N#x}
    $((N))
    $((40 + 8))
    $((N * 2 / 2))
    $(( ${N} + ${U:-0} ))
    ${N:+48}
    ${N+48}
    ${U:=48}
    """
)
_FLAGS = _lines(
    r"""
    --max-num-seqs {v}
    --max-num-seqs={v}
    --max_num_seqs={v}
    --max_num-seqs {v}
    "--max-num-seqs" {v}
    --max-num-seqs 3 --max-num-seqs {v}
    --max-num-seqs \@@  {v}
    --port 1#2 --max-num-seqs {v}
    --max-model-len 99 --max-num-seqs={v} --enforce-eager
    --model $M --max-num-seqs {v}
    """
)
_OTHER_FLAGS = _lines(
    r"""
    --max-num-seq {v}
    --max-num-se={v}
    <nothing>
    --max-model-len 99
    --enforce-eager
    """
)
_COMMANDS = _lines(
    r"""
    vllm serve m {f}
    vllm serve $M {f}
    exec vllm serve m {f}
    vllm serve m {f} # {f3}
    env Q=1 vllm serve m {f}
    Q=1 vllm serve m {f}
    nice -n 1 vllm serve m {f}
    numactl --physcpubind vllm serve m {f}
    eval "vllm serve m {q}"
    vllm serve m $ARGS
    vllm serve m ${{U}} {f}
    """
)
# The same, by a variable that the script sets.
_SETTING_COMMANDS = _lines(
    r"""
    X='{q}'; vllm serve m $X
    X="{q}"@@vllm serve m $X
    export X="{q}"; exec vllm serve m $X
    X="--enforce-eager"; X="$X {q}"; vllm serve m $X
    E="{q}"; E="{f3}" vllm serve m $E
    E="--seed 1"; E="-q" true; vllm serve m $E {f}
    E="{q}"; printf "%s E\n" x; vllm serve m $E
    if [ $CODE = 0 ]; then E="--seed 1"; else E=; fi; vllm serve m $E {f}
    E="--seed 1"; if [ $CODE = 0 ]; then E="--enforce-eager"; fi; vllm serve m ${{E}} {f}
    case $CODE in 0) E="--seed 1";; 1|2) E=--enforce-eager;; *) E=; esac; vllm serve m $E {f}
    """
)
_OTHER_COMMANDS = _lines(
    r"""
    vllm serve m $SECRET_ARGS
    vllm serve m "$SECRET_ARGS"
    vllm serve m ${{SECRET_ARGS:-{q}}}
    vllm serve m $(echo {q})
    vllm serve m --enforce-eager ${{SECRET:+{q}}}
    vllm serve m ${{N:+{q}}}
    echo "{q}" | xargs vllm serve m
    $SECRET_ARGS vllm serve m {f}
    if [ $CODE = 0 ]; then E="{q}"; fi; vllm serve m $E
    E="{f3}"; [ $CODE = 0 ] || E="{q}"; vllm serve m $E
    case $CODE in 0) E="{q}";; 1) E="--seed 1";; esac; vllm serve m $E
    E="{q}"; while [ $CODE = 0 ]; do E="{f3}"; break; done; vllm serve m $E
    E="{q}"; for i in 1 2; do vllm serve m $E; E="{f3}"; done
    E="{q}"; for i in 1 2; do E="$E {f3}"; done; vllm serve m $E
    E="{q}"; [ $CODE = 0 ] && {{ E="{f3}"; }}; vllm serve m $E
    E="{q}"; [ $CODE = 1 ] || eval E=3; vllm serve m $E
    E[0]="{q}"; vllm serve m "${{E[0]}}"
    : ${{E:={f3}}}; vllm serve m $E
    if [ $CODE = 0 ]; then vllm serve m {f}; exit; fi; vllm serve m
    set -- {f}; exec vllm serve m "$@"
    set -e -- {f}; vllm serve m $@
    f() {{ vllm serve m "$@"; }}; f {f}
    for i in 1 2; do E="--seed 1"; done; vllm serve m $E {f}
    for i in 1 2; do E="{q}"; vllm serve m $E; done
    sh -c 'vllm serve m {q}'
    bash -c "vllm serve m {q}"
    X=({f}); vllm serve "${{X[@]}}"
    if [ $CODE = 0 ]; then E="{q}"; else E="-q {q}"; fi; vllm serve m $E
    [ $CODE = 0 ] && E="{q}" || E="{q}"; vllm serve m $E
    E="{q}"; E="{f3}" echo x; vllm serve m $E
    E="{f3}" export F="{q}"; vllm serve m $E $F
    E="{f3}" eval F=1; vllm serve m $E
    """
)
_SCRIPTS = _lines(
    r"""
    {c}
    {c} && echo done
    cd / ; {c}
    echo --max-num-seqs 3; {c}
    {c} 2>&1 | cat
    {c} &@@wait
    set -euo pipefail; {c}
    N=48; {c}
    echo a#b; {c}
    echo "it's"; {c}
    unset Z; {c}
    trap 'exit 1' TERM; {c}
    """
)
# In which a variable may be set or not.
_BLOCKS = _lines(
    r"""
    if [ -n "$N" ]; then {c}; fi
    if [ "$N" -gt 40 ]; then {c}; fi
    ( {c} )
    {{ {c}; }}
    case $N in 4*) {c};; *) false;; esac
    while true; do {c}; break; done
    for i in 1 2; do {c}; done
    ( {c} ) || ( {c} )
    true && {c}
    Y=1 && {c}
    """
)
_OTHER_SCRIPTS = _lines(
    r"""
    if [ "$N" = 48 ]; then {c}; else vllm serve m {f3}; fi
    if [ -z "$N" ]; then vllm serve m {f3}; else {c}; fi
    {c} || {c}
    {c} || vllm serve m {f3}
    false || {c}
    ! false && {c}
    if cat /nothing; then vllm serve m {f3}; else {c}; fi
    echo 'N=9 U=7' > env; . ./env; {c}
    export $(echo N=9); {c}
    eval "$(echo N=9)"; {c}
    [[ -n $N ]] && {c}
    {c} || vllm serve m
    cat f && N=9; {c}
    if cat f; then N=9; fi; {c}
    for N in 7 48; do {c}; done
    read N; {c}
    while false; do N=9; done; {c}
    cat <<EOF > f@@{f3}@@EOF@@{c}
    cat <<'END'@@vllm serve {f3} 'x@@END@@{c}
    bash <<'EOF'@@{c}@@EOF
    {c}; exit 0; vllm serve m {f3}
    """
)
_SHELLS = (
    ("sh", "-c"), ("bash", "-c"), ("/bin/bash", "-c"), ("bash", "-c", "--"), ("bash", "-c", "-e"),
    ("bash", "-ec"), ("bash", "-ce"), ("bash", "-eu", "-c"), ("bash", "-euo", "pipefail", "-c"),
    ("bash", "-eo", "pipefail", "-c"), ("bash", "-o", "pipefail", "-c"), ("bash", "+e", "-c"),
    ("bash", "--norc", "-c"), ("bash", "-O", "extglob", "-c"), ("bash", "-co", "pipefail"),
    ("env", "Q=2", "bash", "-c"), ("tini", "--", "bash", "-c"), ("sh", "-c", "-e"), ("sh", "-ec"),
)  # fmt: skip


# As an element of args, without a shell; the last ones cannot be known.
_PLAIN = (
    "--max-num-seqs=48", "--max_num_seqs=48", "--max-num-seqs=$(N)", "--max-num-seqs=$(N_OF_N)",
    "--max-num-seqs|48", "--max-num-seqs|$(N)", "--max_num-seqs|$(N_OF_N)",
    "--max-num-seqs=$(FOUR)8",
    "--max-num-seqs|3|--max-num-seqs|48", "--max-num-seqs=3|--max_num_seqs|$(N)", "$(JOINED)",
)  # fmt: skip
_PLAIN_OTHERS = (
    "--max-num-seqs=$(SECRET)", "--max-num-seqs|$(SECRET)", "$(SECRET_ARGS)", "--max-num-seq=48",
    "--max-num-seqs|$N", "--max-num-seqs=${N}", "--max-num-seqs='48'", '--max-num-seqs="48"',
    "--max-num-seqs 48", "$(ARGS)", "--max-num-seqs", "--max-num-seqs=", "--max-num-seqs|-1",
    "--max-num-seqs=48|--max-num-seqs=$(SECRET)", "--max-num-seqs=$$(N)", "--max-num-se|48",
    "--max-num-seqs= 48", "--max-num-seqs=4_8", "--MAX-NUM-SEQS=48", "--max-num-seqs|$(NONE)", "",
)  # fmt: skip
_PLAIN_COMMANDS = (
    (),
    ("vllm", "serve", "m"),
    ("vllm", "serve", "$(M)"),
    ("python3", "-m", "vllm.entrypoints.openai.api_server"),
    ("numactl", "--physcpubind", "vllm", "serve", "m"),
    ("env", "Q=1", "vllm", "serve", "m"),
    ("/usr/bin/tini", "--", "vllm", "serve", "m"),
)
_AROUND = (
    "--enforce-eager",
    "--port|8000",
    "--model=$(M)",
    "--served-model-name|$(SECRET)",
    "-tp|2",
)
_MORE_VARIABLES = {"N_OF_N": "$(N)", "FOUR": "4", "JOINED": "--max-num-seqs=$(N)"}


def shell_case(random: Random) -> Case:
    """A script that starts an engine."""

    def one(literal: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, bool]:
        known = random.random() < _SHARE_OF_LITERAL
        return random.choice(literal if known else others), known

    value, known_value = one(_LITERAL, _UNKNOWN)
    flag, known_flag = one(_FLAGS, _OTHER_FLAGS)
    flag = flag.format(v=value)
    quoted = flag.replace("'", "").replace('"', "").replace("\\\n", "")
    sets = random.random() < _HALF
    command, known_command = one(_SETTING_COMMANDS if sets else _COMMANDS, _OTHER_COMMANDS)
    command = command.format(f=flag, q=quoted, f3="--max-num-seqs 3")
    script, known_script = one(_SCRIPTS if sets else _SCRIPTS + _BLOCKS, _OTHER_SCRIPTS)
    script = script.format(c=command, f3="--max-num-seqs 3")
    shell = random.choice(_SHELLS)
    literal = known_value and known_flag and known_command and known_script
    if random.random() < _SHARE_OF_PARAMETERS:
        words = [word.strip("'\"") for word in quoted.split() if "$" not in word]
        return Case(command=(*shell, 'exec vllm serve m "$@"'), args=("start", *words))
    if random.random() < _HALF:
        return Case(command=shell, args=(script,), literal=literal)
    return Case(command=(*shell, script), literal=literal)


def plain_case(random: Random) -> Case:
    """Arguments without a shell."""
    literal = random.random() < _HALF
    words = random.choice(_PLAIN if literal else _PLAIN_OTHERS)
    around = random.sample(_AROUND, k=random.randrange(3))
    place = random.randrange(len(around) + 1)
    parts = [*around[:place], *([words] if words else []), *around[place:]]
    args = tuple(word for part in parts for word in part.split("|"))
    command = random.choice(_PLAIN_COMMANDS)
    known = {**KNOWN, **_MORE_VARIABLES}
    if random.random() < _HALF:
        return Case(command=(*command, *args), known=known, literal=literal)
    return Case(command=command, args=args, known=known, literal=literal)


_BIT = ('[ "$C1" = 1 ]', 'test "$C2" = 1', "[[ $C1 == 1 ]]", '! [ "$C2" = 1 ]', "true", "false")
_SET = _lines(
    r"""
    E="{f}"
    E="$E {f}"
    E+=" {f}"
    export F="{f}"
    F="${{F:-{f}}}"
    : "${{E:={f}}}"
    eval "E='{f}'"
    set -- {f}
    E="$*"
    unset E
    E="{f}" | cat
    """
)
_STARTS = _lines(
    r"""
    vllm serve m $E $F
    vllm serve m "$@" ${E:+$F}
    eval "exec vllm serve m $E"
    F= vllm serve m $F $*
    """
)
_AROUND_SETS = _lines(
    r"""
    {a}
    if {c}; then {a}; else {b}; fi
    if {c}; then {a}; elif {d}; then {b}; fi
    case "$C1$C2" in 00|11) {a};; 01) {b};; *) {a};; esac
    for i in 1 2; do {a}; {b}; done
    {c} && {a}
    {c} && {a} || {b}
    {c} || {{ {a}; {b}; }}
    ( {a}; {b} )
    """
)
BITS = ("00", "01", "10", "11")


def branching_case(random: Random) -> Case:
    """A script whose variables are set in branches and loops, by unknown conditions."""

    def setting() -> str:
        flags = ("--max-num-seqs 48", "--max-num-seqs 3", "--seed 1", "", "-q --max-num-seqs=48")
        return random.choice(_SET).format(f=random.choice(flags))

    def statement() -> str:
        conditions = {"c": random.choice(_BIT), "d": random.choice(_BIT)}
        return random.choice(_AROUND_SETS).format(a=setting(), b=setting(), **conditions)

    body = [statement() for _ in range(random.randint(1, 4))]
    script = "\n".join([*body, random.choice(_STARTS)])
    return Case(command=("bash", "-c", script), secret={})
