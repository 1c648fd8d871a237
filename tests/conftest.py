"""Fixtures that every kind of test may use: the rig, and a namespace of its own for each test."""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import settings
from tests.touched import changed_paths, is_changed, touched_modules
from tests.virtual_time import VirtualTimeLoop

from servingslo.adapters.clock import SystemClock
from servingslo_lab.errors import RigError
from servingslo_lab.rig.build import ensure_rig
from servingslo_lab.rig.cluster import Rig, RigOptions
from servingslo_lab.rig.image.build import Image, build, load

# Room for every test that does not ask for GPU shortage; those add labelled nodes of their own.
_SHARED_NODE_COUNT = 8
# How long an example takes says nothing on a machine that others use as well. The same examples at
# every run, so that a change is what turns a test red; `make fuzz` looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
_BUILD_ERROR = pytest.StashKey[RigError]()
_CHANGED = pytest.StashKey[frozenset[str] | None]()
_TOUCHED = pytest.StashKey[frozenset[str] | None]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags that choose what a release waits for, and what a change touches."""
    parser.addoption(
        "--acceptance",
        action="store_true",
        help="run the tests marked acceptance or slow, and no other",
    )
    parser.addoption(
        "--touched",
        action="store_true",
        help="run what the change since origin/main, or CHANGED_SINCE, touches: tests/touched.py",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Ask what changed, and let Ctrl-C reach the programs under test.

    A shell that started the run with `&` has it ignored, and every child inherits that.
    """
    config.stash[_CHANGED] = changed_paths()
    touched = config.getoption("--touched")
    config.stash[_TOUCHED] = touched_modules(config.stash[_CHANGED]) if touched else None
    if hasattr(config, "workerinput"):
        from tests.scheduling import yields_to_rigs  # noqa: PLC0415 - only where xdist is in use

        yields_to_rigs(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _needs_rig(item: pytest.Item) -> bool:
    return "rig" in getattr(item, "fixturenames", ())


def _path_of(path: Path, config: pytest.Config) -> str:
    """Of a module, below the root."""
    return Path(os.path.relpath(path, config.rootpath)).as_posix()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a module that the change does not touch."""
    touched = config.stash[_TOUCHED]
    if touched is None or not collection_path.match("test_*.py"):
        return None
    return None if _path_of(collection_path, config) in touched else True


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say it where a run is of less than everything."""
    touched = config.stash[_TOUCHED]
    return None if touched is None else f"the change touches {len(touched)} modules"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs the rig, so that ``-m "not rig"`` leaves it out; split off acceptance."""
    changed = config.stash[_CHANGED]

    def waits_for_a_release(item: pytest.Item) -> bool:
        if item.get_closest_marker("slow") is None:
            return item.get_closest_marker("acceptance") is not None
        return not is_changed(_path_of(item.path, config), changed)

    for item in items:
        if _needs_rig(item):
            item.add_marker(pytest.mark.rig)
    if config.getoption("--acceptance"):
        kept = {"acceptance", "slow"}
        others = [i for i in items if not kept.intersection(m.name for m in i.iter_markers())]
    else:
        others = [item for item in items if waits_for_a_release(item)]
    if others:
        left = set(others)
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=others)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run what is marked `virtual_time` on a loop whose clock jumps from timer to timer."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _stopwatch_of_the_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `virtual_time` the product's stopwatch shows the time of the loop."""
    if request.node.get_closest_marker("virtual_time") is not None:
        monkeypatch.setattr(
            SystemClock, "elapsed_seconds", staticmethod(lambda: asyncio.get_running_loop().time())
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Run what waits for the rig beside what computes; nothing of it without `-n`."""
    from tests.scheduling import RigBesideTheRest  # noqa: PLC0415 - only where xdist is in use

    return RigBesideTheRest(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the rig before the first test: a cold build takes longer than a test may.

    Modules whose tests need further programs name them as RIG_TOOLS.
    """
    if session.config.option.collectonly or not any(map(_needs_rig, session.items)):
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    more = {tool for module in modules for tool in getattr(module, "RIG_TOOLS", ())}
    try:
        with capture.global_and_fixture_disabled():
            ensure_rig(sorted(more, key=lambda tool: tool.name))
    except RigError as error:
        session.config.stash[_BUILD_ERROR] = error


@pytest.fixture(scope="session")
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One control plane, Prometheus and KWOK with GPU nodes for the whole run."""
    build_error = request.config.stash.get(_BUILD_ERROR, None)
    if build_error is not None:
        pytest.fail(f"the rig cannot be built: {build_error}", pytrace=False)
    with Rig.start(RigOptions()) as running:
        running.add_nodes(_SHARED_NODE_COUNT)
        yield running


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The operator's image in a folder, from the Dockerfile; SERVINGSLO_IMAGE names one there."""
    there = os.environ.get("SERVINGSLO_IMAGE")
    return load(Path(there)) if there else build(tmp_path_factory.mktemp("image"))


@pytest.fixture
def namespace(rig: Rig) -> Iterator[str]:
    """A fresh namespace that is deleted after the test."""
    # Not from the random module, which pytest-randomly seeds the same way before each test.
    name = rig.create_namespace(f"test-{secrets.token_hex(4)}")
    yield name
    rig.delete_namespace(name)
