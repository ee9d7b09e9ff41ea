"""Formulas as MathML, which browsers draw themselves: nothing but a font, which is part of the site, is loaded."""

from __future__ import annotations

import html
import re
from typing import Any

from docutils import nodes
from docutils.utils.math import mathalphabet2unichar
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)
GROUP = r"\{(?:[^{}]|\{[^{}]*\})*\}"
REPLACED = {
    rf"\\operatorname\*({GROUP})_({GROUP}|\\[a-zA-Z]+|\w)": r"\\underset{\2}{\\operatorname\1}",
    r"\\operatorname\*": r"\\operatorname",
    r"\\operatorname\{(\w+)\\[,;: ](\w+)\}": r"\\text{\1 \2}",
    r"\\(begin|end)\{(?:aligned|align)\}": r"\\\1{align*}",
    r"\\arg(?![a-zA-Z])": r"\\operatorname{arg}",
    r"\\(mathcal|mathbb|mathbf|mathfrak|mathsf)\s+(\w)": r"\\\1{\2}",
    r"\\mathrm\{(\w)\}": r"\\mathrm \1 ",
    r"\\[lr]Vert(?![a-zA-Z])": r"\\|",
}
"""LaTeX that the converter or browsers do not know, as regular expressions, and what they know."""
FUNCTION = re.compile(r"<mi>(?:log|ln|exp|det|sin|cos|tanh)</mi>(?!<mo[^>]*>(?:&#x00028;|&#x0005B;)|<mspace|</)")
"""Names of functions without parentheses after them, which need a space."""
ALPHABETS = {
    "bold": mathalphabet2unichar.mathbf,
    "bold-italic": mathalphabet2unichar.mathbfit,
    "double-struck": mathalphabet2unichar.mathbb,
    "script": mathalphabet2unichar.mathcal,
}
"""Characters for the values of ``mathvariant``, of which browsers know only ``normal``."""
BRACE = "<mo>&#x23DF;</mo></munder>"
"""The end of an expression with a brace below it."""


def to_mathml(formula: str, display: str) -> str:
    """The MathML of a formula.

    Raises:
        ValueError: if the formula contains a command that is not known.
    """
    for pattern, known in REPLACED.items():
        formula = re.sub(pattern, known, formula)
    found = str(convert(formula, display=display))
    unknown = re.findall(r"\\[a-zA-Z]+\*?|(?<=>)&(?=<)", found)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} cannot be converted to MathML")

    def replace(match: re.Match[str]) -> str:
        letters = ALPHABETS[match[2]]
        return f"<{match[1]}>{''.join(letters.get(letter, letter) for letter in html.unescape(match[3]))}<"

    found = draw_braces(FUNCTION.sub(r'\g<0><mspace width="0.167em" />', found))
    return re.sub(rf'<(m[ino]) mathvariant="({"|".join(ALPHABETS)})">([^<]*)<', replace, found)


def draw_braces(found: str) -> str:
    """Replace braces below expressions by a border of the site's style sheet.

    Chromium does not stretch the brace of the font to more than about ten letters.
    """
    while BRACE in found:
        end = found.index(BRACE)
        open_tags = 1
        for tag in reversed(list(re.finditer("</?munder>", found[:end]))):
            open_tags += 1 if tag[0] == "</munder>" else -1
            if not open_tags:
                inner = found[tag.end() : end]
                found = f'{found[: tag.start()]}<mrow class="underbrace">{inner}</mrow>{found[end + len(BRACE) :]}'
                break
    return found


def convert_node(node: nodes.math | nodes.math_block, display: str) -> str:
    """The MathML of a node; a formula that cannot be converted is shown as LaTeX, and warned of."""
    try:
        return to_mathml(node.astext(), display)
    except Exception as error:  # the errors of the converter have no base of their own
        LOGGER.warning("formula %r: %r", node.astext(), error, location=node, type="mathml")
        return f"<code>{html.escape(node.astext())}</code>"


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(convert_node(node, "inline"))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math-block", ids=node.get("ids", [])))
    if node["number"]:
        self.body.append(f'<span class="eqno">({node["number"]})</span>')
    self.body.append(convert_node(node, "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
