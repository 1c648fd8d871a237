"""vLLM's version from the tag of its own images; other distributions have their own versions.

Source: docker.io/vllm and the release repositories of public.ecr.aws/q9t5s3a7, as named in vLLM's
documentation for Docker, CPUs and ROCm. Images of llm-d, LMCache, NVIDIA's NGC, AMD's rocm/vllm and
Red Hat have tags with their own versions.
"""

import re
from collections.abc import Sequence

# The last two parts of a repository's path: a mirror keeps them and changes only the prefix.
_OWN_IMAGES = re.compile(
    r"(?:^|/)(?:vllm/vllm-(?:openai|openai-cpu|openai-rocm|openai-xpu|cpu|tpu)"
    r"|q9t5s3a7/vllm(?:-cpu|-rocm)?-release-repo)$"
)
# Images of others whose start command is vLLM's server as well.
# Source: docker/Dockerfile.cuda of llm-d/llm-d.
_SAME_START = re.compile(r"(?:^|/)llm-d/llm-d(?:-(?:aws|cpu|cuda|dev|gke|hpu|rocm|xpu))*$")
# Matches v0.11.0, 0.8.5.post1, v0.11.0-x86_64, v0.12.0rc1; not nightly, latest or a commit.
_RELEASE = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[.\-+][\w.\-+]*)?")

# The engine that a variable chooses; 0.8 changed the default, and 0.11 has one engine only.
_ENGINE = re.compile(r"\bVLLM_USE_V1=[\"']?([01])\b")
_FIRST_WITH_V1, _FIRST_WITHOUT_V0 = (0, 8), (0, 11)


def vllm_version(image: str | None) -> tuple[int, ...] | None:
    """Version of vLLM in an image, up to the patch; None if its tag does not contain it."""
    repository, tag = _parts(image)
    if not _OWN_IMAGES.search(repository):
        return None
    found = _RELEASE.fullmatch(tag)
    return None if found is None else tuple(int(part) for part in found.groups() if part)


def starts_vllm(image: str | None) -> bool:
    """Whether an image is known to start vLLM's server, without flags and variables of its own."""
    repository, _ = _parts(image)
    return bool(_OWN_IMAGES.search(repository) or _SAME_START.search(repository))


def other_defaults(image: str | None, words: Sequence[str]) -> str:
    """Why the defaults are not those of its version; '' if they are.

    words: of its command line, and its variables with their values.
    """
    version = vllm_version(image) or _FIRST_WITH_V1
    found = next(filter(None, map(_ENGINE.search, words)), None)
    usual = "1" if version >= _FIRST_WITH_V1 else "0"
    if found is None or found[1] == usual or version >= _FIRST_WITHOUT_V0:
        return ""
    return f"VLLM_USE_V1={found[1]} has other defaults: give the limits"


def _parts(image: str | None) -> tuple[str, str]:
    """Repository and tag of an image, '' for no tag."""
    name = (image or "").partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, "")
