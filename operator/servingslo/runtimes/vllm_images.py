"""vLLM's version by the tag of its own images; other distributions number themselves.

Source: docker.io/vllm and the release repositories of public.ecr.aws/q9t5s3a7, as vLLM's
documentation of its deployment with Docker, and of CPUs and ROCm, names them. Of llm-d, LMCache,
NVIDIA's NGC, AMD's rocm/vllm and Red Hat the tag is a version of their own.
"""

import re

# The last two parts of a repository's path: a mirror keeps them, whatever is before.
_OWN_IMAGES = re.compile(
    r"(?:^|/)(?:vllm/vllm-(?:openai|openai-cpu|openai-rocm|openai-xpu|cpu|tpu)"
    r"|q9t5s3a7/vllm(?:-cpu|-rocm)?-release-repo)$"
)
# v0.11.0, 0.8.5.post1, v0.11.0-x86_64, v0.12.0rc1; neither nightly, latest nor a commit.
_RELEASE = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:[.\-+][\w.\-+]*)?")


def vllm_version(image: str | None) -> tuple[int, int] | None:
    """Major and minor of the vLLM in an image; None where its tag does not say it."""
    name = (image or "").partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag or not _OWN_IMAGES.search(repository):
        return None
    found = _RELEASE.fullmatch(tag)
    return None if found is None else (int(found[1]), int(found[2]))
