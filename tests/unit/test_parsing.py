"""What somebody else wrote is read or refused, and ends no more than its own reading."""

import pytest
import yaml

from servingslo.adapters.kubernetes.gateways.limits import (
    LIMIT_ANNOTATION,
    LIMIT_FORMS,
    limit_holders,
)
from servingslo.parsing import parsed_documents, parsed_yaml, written_json

DEEP = "[" * 50_000


class Cluster:
    """Lists of objects, each of which has these annotations."""

    def __init__(self, annotations):
        self.item = {
            "metadata": {
                "name": "chat", "namespace": "a", "uid": "u-1", "resourceVersion": "7",
                "annotations": annotations, "generation": 1,
            },
            "spec": {"template": {"spec": {"containers": [{"name": "vllm"}]}}},
        }  # fmt: skip

    async def get(self, _path, _query=None):
        """One object in each list."""
        return {"items": [self.item], "metadata": {"resourceVersion": "7"}}


@pytest.mark.parametrize(
    "text",
    [DEEP, '{"a":' * 50_000, "9" * 5000, "[1", "", b"\xff", r'["\ud800"]', rb'{"\uDFFF": 1}'],
)
def test_json_that_cannot_be_read_is_one_kind_of_error(text):
    """However it is wrong, callers that refuse what is no JSON refuse it."""
    with pytest.raises(ValueError):
        written_json(text)


@pytest.mark.parametrize(
    "text",
    [
        DEEP, r'a: "\ud800"',
        "a: !!int ''", "a: !!bool maybe", "a: !!timestamp soon", "a: 2001-99-99",
        "a: !!float x", "a: !!binary é", "[a", "a: " + "9" * 5000,
    ],
)  # fmt: skip
def test_yaml_that_cannot_be_read_is_one_kind_of_error(text):
    """The parser raises seven kinds for what its tags and forms do not hold."""
    with pytest.raises(yaml.YAMLError):
        parsed_documents(text)


def test_of_one_document_none_and_several_one_is_read():
    """An empty text is nothing; where one is expected, several are refused."""
    assert parsed_yaml("a: 1") == {"a": 1}
    assert parsed_yaml("") is None
    with pytest.raises(yaml.YAMLError, match="several documents"):
        parsed_yaml("a: 1\n---\nb: 2")


async def test_an_annotation_that_nests_deeply_is_none_of_ours():
    """Anybody may write one into an object of his own; what others have on trial is still ended."""
    cluster = Cluster({LIMIT_ANNOTATION: DEEP})
    for form in LIMIT_FORMS:
        assert await limit_holders(cluster, form).owned() == ()


def test_a_pair_of_surrogates_is_a_character():
    """Only a half of one is refused, and what merely looks like an escape is not."""
    assert written_json(r'"\ud83d\ude00"') == "\N{GRINNING FACE}"
    assert written_json(r'"\\ud800"') == r"\ud800"
    assert parsed_yaml(r"a: '\ud800'") == {"a": r"\ud800"}
