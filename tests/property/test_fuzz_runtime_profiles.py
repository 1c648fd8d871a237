"""Any document of an administrator's is taken or refused by name, and no name leaves a query."""

import copy
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.added_runtimes import ADDED, CHANGED

from servingslo.adapters.prometheus.config import PrometheusConfig
from servingslo.adapters.prometheus.queries import build_queries
from servingslo.api.runtime_profiles import runtimes_of
from servingslo.errors import InvalidInputError
from servingslo.runtimes.profile import RuntimeProfile

_WORDS = st.text(max_size=12) | st.sampled_from(
    ["names", "only", "byLabel", "unit", "metrics", "running", 'a"} or b', "a|b", "--x", "le", "\n"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=8,
)
_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def parsed(document: object) -> tuple[RuntimeProfile, ...] | None:
    """The profiles; None where they are refused, with an error that names the field."""
    try:
        return runtimes_of(document)
    except InvalidInputError as error:
        if not error.field.startswith("runtimes"):
            raise
        return None


@given(document=_JSON)
def test_any_document_is_taken_or_refused(document: Any) -> None:
    """With an error of the package's own."""
    parsed(document)


@given(data=st.data(), value=_JSON)
def test_a_profile_with_anything_in_one_place_is_taken_or_refused(data: Any, value: Any) -> None:
    """What is taken stands in queries as names alone."""
    document = copy.deepcopy({**ADDED, **CHANGED})
    place, key = document, data.draw(st.sampled_from(sorted(document)))
    while isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
        place, key = place[key], data.draw(st.sampled_from(sorted(place[key])))
    if data.draw(st.booleans()):
        place[key] = value
    else:
        place[data.draw(_WORDS)] = value
    profiles = parsed(document) or ()
    queries = build_queries(profiles, PrometheusConfig(url="http://localhost"))
    asked = (queries.gauges, queries.counters, *queries.histograms)
    names = (name for one in profiles for name in one.metric_names)
    labels = (label for one in profiles for label in (one.engine_label, *one.part_labels))
    assert all(_PLAIN.fullmatch(word) for word in (*names, *labels))
    assert all(query.count("{") == query.count("}") for query in asked)
