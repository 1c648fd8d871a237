"""Makes the runtimes known that an administrator's file adds or changes."""

from pathlib import Path

import yaml

from servingslo.api.runtime_profiles import runtimes_of
from servingslo.cli.manifest import Loader
from servingslo.errors import InvalidInputError
from servingslo.parsing import parsed_yaml, yaml_problem
from servingslo.runtimes import catalogue

FLAG = "--runtime-profiles"


def add_runtimes(path: Path) -> None:
    """Know them from here on. Raises: InvalidInputError naming file or field, value and range."""
    try:
        document = parsed_yaml(path.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        allowed = f"a readable file ({error.strerror})"
        raise InvalidInputError(FLAG, str(path), allowed) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(FLAG, str(path), "a file in YAML, as UTF-8") from error
    except yaml.YAMLError as error:
        allowed = f"a file in YAML ({yaml_problem(error)})"
        raise InvalidInputError(FLAG, str(path), allowed) from error
    catalogue.add(runtimes_of(document))
