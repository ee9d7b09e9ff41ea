"""Search of Korean text: words are indexed without their particles, so that 분산 finds 분산을 and 분산의."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.search import SearchLanguage
from sphinx.search.en import SearchEnglish

PARTICLES = re.findall(
    r"\w+",
    """
    으로부터 에서부터
    이라는 이라고 에서는 에서의 으로는 으로써 로부터 까지의 만으로 입니다 합니다 됩니다
    에서 에게 으로 로는 로서 로써 라는 라고 까지 부터 보다 처럼 마다 만큼 에는 에도 에만
    이나 이란 이며 이고 하는 하고 하여 한다 된다 되는
    은 는 이 가 을 를 의 에 와 과 도 로 만 란 며 나
    """,
)
"""Endings of a noun, longest first."""
HANGUL = re.compile(r"[가-힣]+$")


def without_particle(word: str) -> str:
    """A Korean word without the longest particle at its end; at least two syllables are left."""
    for particle in sorted(PARTICLES, key=len, reverse=True):
        if word.endswith(particle) and len(word) - len(particle) >= 2:
            return word[: -len(particle)]
    return word


class SearchKorean(SearchLanguage):
    """Korean words without particles, other words in lower case."""

    lang = "ko"
    language_name = "Korean"
    stopwords = SearchEnglish.stopwords
    js_stemmer_code = f"""
const particles = {sorted(PARTICLES, key=len, reverse=True)!r};
class Stemmer {{
  stemWord(word) {{
    if (!/[가-힣]+$/.test(word)) return word.toLowerCase();
    for (const particle of particles)
      if (word.endsWith(particle) && word.length - particle.length >= 2) return word.slice(0, -particle.length);
    return word;
  }}
}}
"""

    def stem(self, word: str) -> str:
        return without_particle(word) if HANGUL.search(word) else word.lower()

    def word_filter(self, word: str) -> bool:
        return len(word) > 1 and word not in self.stopwords


def translate_search_field(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Set the text of the search field, which the theme takes from its options for every language."""
    if app.config.language == "ko":
        context["theme_search_bar_text"] = "문서 검색 ..."


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_search_language(SearchKorean)
    app.connect("html-page-context", translate_search_field)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
