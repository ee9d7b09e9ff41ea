"""Formulas as MathML, by docutils' own converter: no script and no font is loaded to show them."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

SIGNS = str.maketrans(
    {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "·": r"\cdot ", "−": "-", "‖": r"\| "}
)
"""Signs that formulas of docstrings contain, and their LaTeX."""
LOGGER = logging.getLogger(__name__)


def convert(node: nodes.math | nodes.math_block, block: bool) -> str:
    """The MathML of a formula; one that cannot be converted is shown as LaTeX, and warned of."""
    try:
        return str(latex2mathml.tex2mathml(node.astext().translate(SIGNS), as_block=block))
    except (MathError, AttributeError, KeyError, SyntaxError) as error:
        LOGGER.warning("formula %r: %s", node.astext(), error, location=node, type="mathml")
        return f"<code>{nodes.Text(node.astext())}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(convert(node, block=False))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math-block", ids=node.get("ids", [])))
    if node["number"]:
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(convert(node, block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
