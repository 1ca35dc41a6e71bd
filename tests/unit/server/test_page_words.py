"""The page's words: every language has the same keys and placeholders, and all are used."""

import json
import re

import pytest

from omlx.cache.changes import Change
from omlx.cache.explain import Section
from omlx.engine.request import EngineState, FinishReason
from omlx.launch.catalog import Kind
from omlx.launch.fits import Fit
from omlx.models.demo import Stage
from omlx.server.page.assets import FOLDER
from omlx.server.pulls import PullState
from omlx.settings.layers import OriginKind
from omlx.storage.entry import MissReason, PartKind, TtftParts

LOCALES = FOLDER / "locales"
LANGUAGES = ["de", "en", "es", "fr", "ja", "ko", "zh-Hans", "zh-Hant"]
ENGLISH = json.loads((LOCALES / "en.json").read_text())
SOURCE = "\n".join(path.read_text() for path in sorted((FOLDER / "app").glob("*.js")))
# Words of the server's, each with the prefix that the page puts before it.
SERVER_WORDS = {
    "state": [*(state.value for state in EngineState), "stalled"],
    "miss": [reason.value for reason in MissReason],
    "outcome": [*(reason.value for reason in FinishReason), "failed"],
    "pull": [state.value for state in PullState],
    "pullstage": [stage.value for stage in Stage],
    "origin": [kind.value for kind in OriginKind],
    "change": [change.value for change in Change],
    "piece": [section.value for section in Section],
    "place": [*(kind.value for kind in PartKind), "template"],
    "part": [*TtftParts(0, 0, 0, 0, 0, 0).by_name()],
    "kind": [kind.value for kind in Kind],
    "fit": [fit.value for fit in Fit],
    "verdict": ["good", "watch", "bad"],
    "stage": ["queued", "prefill", "decode"],
}


def words(language):
    return json.loads((LOCALES / f"{language}.json").read_text())


def placeholders(text):
    return sorted(re.findall(r"\{\w+\}", text))


def test_the_languages_are_those_that_can_be_chosen():
    assert sorted(path.stem for path in LOCALES.glob("*.json")) == LANGUAGES
    listed = (FOLDER / "app" / "words.js").read_text().partition("];")[0]
    assert sorted(re.findall(r'\["([\w-]+)", ', listed)) == LANGUAGES


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_has_the_same_keys_and_placeholders(language):
    own = words(language)
    assert list(own) == list(ENGLISH)
    for key, text in own.items():
        assert isinstance(text, str) and text.strip() == text != ""
        assert placeholders(text) == placeholders(ENGLISH[key]), key
        assert "<" not in text


@pytest.mark.parametrize("language", [one for one in LANGUAGES if one != "en"])
def test_each_is_a_translation(language):
    own = words(language)
    long = [key for key, text in ENGLISH.items() if len(re.sub(r"\{\w+\}", "", text)) > 20]
    assert [key for key in long if own[key] == ENGLISH[key]] == []


def test_every_key_that_the_page_asks_for_is_there():
    asked = set(re.findall(r'\bt\(\s*"([\w.]+)"', SOURCE))
    assert asked - set(ENGLISH) == set()
    # Those with a part that is only known when it runs.
    for prefix in re.findall(r"\bt\(`([\w.]+\.)\$\{", SOURCE):
        assert [key for key in ENGLISH if key.startswith(prefix)], prefix


def test_every_word_of_the_server_has_its_words():
    for prefix, values in SERVER_WORDS.items():
        for value in values:
            assert f"{prefix}.{value.replace(' ', '_')}" in ENGLISH
    for reason in MissReason:
        assert f"miss.{reason.value}.means" in ENGLISH


def test_no_key_is_left_over():
    dynamic = [*SERVER_WORDS, "limit", "scope", "theme", "section", "fact", "use", "lead", "said"]
    used = set(re.findall(r'"([a-z_]+\.[\w.]+)"', SOURCE))
    rest = [key for key in ENGLISH if key not in used and key.partition(".")[0] not in dynamic]
    assert [key for key in rest if not key.startswith("models.said_")] == []
