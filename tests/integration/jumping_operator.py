"""`servingslo` as it is, but its wall clock is as many seconds ahead as a file says.

The file is named by SERVINGSLO_TEST_CLOCK; clocks that never jump are left alone, as the kernel
leaves them.
"""

import os
import time
from pathlib import Path

_wall_seconds = time.time  # noqa: TID251  this is what jumps
_AHEAD = Path(os.environ["SERVINGSLO_TEST_CLOCK"])


def _jumped() -> float:
    return _wall_seconds() + float(_AHEAD.read_text(encoding="utf-8"))


if __name__ == "__main__":
    time.time = _jumped  # noqa: TID251  this is what jumps
    from servingslo.cli.main import main

    main()
