"""The machinery of the documentation site; ``make docs`` builds it, with warnings as errors."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLES = sorted((DOCS / "examples").rglob("plot_*.py"))


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module of docs/_extensions by its name."""
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    return importlib.import_module


def test_every_public_name_has_a_page_with_a_summary(extension: Any) -> None:
    """The build writes a page for every object that ``public_objects`` lists in a package of a part."""
    api = extension("api_objects")
    packages = api.public_objects()
    assert set(packages) == {name for names in api.parts().values() for name in names}
    for name, module in api.public_modules().items():
        listed = {thing.name.rpartition(".")[2]: thing for thing in packages[name]}
        assert set(getattr(module, "__all__", ())) <= set(listed)
        assert [thing.name for thing in listed.values() if not thing.summary] == []


def test_every_method_metric_calibration_plot_and_decision_has_an_example(extension: Any) -> None:
    """By name, in the text of an example of the gallery; results and interfaces are met through what returns them."""
    shown = "\n".join(path.read_text(encoding="utf-8") for path in EXAMPLES)
    interfaces = {"Calibrator", "Distilled", "Method", "NetworkMethod", "Terms", "leading_classes"}
    missing = [
        thing.name
        for package in ("methods", "metrics", "calibration", "plots", "decisions", "likelihoods", "mixture", "linear")
        for thing in extension("api_objects").public_objects()[package]
        if (thing.kind == "function" or callable(getattr(thing.value, "fit", None)) or package == "likelihoods")
        and not thing.name.rpartition(".")[2].endswith(("_from_config", "infer_likelihood"))
        and not re.search(rf"\b{thing.name.rpartition('.')[2]}\b", shown)
        and thing.name.rpartition(".")[2] not in interfaces
    ]
    assert missing == []


def test_members_of_the_reference_are_those_of_credo(extension: Any) -> None:
    api = extension("api_objects")
    methods = {thing.name: thing for thing in api.public_objects()["methods"]}
    members = methods["credo.BayesByBackprop"].members()
    assert {"fit", "predict", "loss", "elbo", "save"} <= set(members)
    assert not {"register_buffer", "zero_grad"} & set(members)  # of nn.Module


def test_links_of_the_repository_become_links_of_the_site(extension: Any) -> None:
    pages = extension("repository_pages")
    text = "[c](../CONTRIBUTING.md#style) [t](tables.md#scores) [e](examples.md) [s](../src/credo) ![i](i.png)"
    assert pages.rewrite_links(text, "docs/a.md", "docs/a.md") == (
        "[c](contributing.md#style) [t](tables.md#scores) [e](auto_examples/index.rst) s (`src/credo`) ![i](i.png)"
    )
    assert pages.rewrite_links("[d](docs/design.md)", "CONTRIBUTING.md", "docs/contributing.md") == "[d](design.md)"
    example = "[p](../examples/networks/plot_hmc.py)"
    rewritten = pages.rewrite_links(example, "docs/theory/a.md", "docs/theory/a.md")
    assert rewritten == "[p](../auto_examples/networks/plot_hmc.rst)"
    block = "```\n[c](../CONTRIBUTING.md)\n```"
    assert pages.rewrite_links(block, "docs/a.md", "docs/a.md") == block


def test_a_list_of_contents_becomes_a_toctree(extension: Any) -> None:
    text = "<!-- contents -->\n- [One](a/one.md): first.\n- [Two](two.md#x)\n<!-- end -->\n- [Three](three.md)\n"
    found = extension("repository_pages").contents(text)
    assert "```{toctree}\n:hidden:\n\nOne <a/one>\n```" in found
    assert "- [One](a/one.md): first." in found


def test_formulas_of_docstrings_are_kept_as_they_are(extension: Any) -> None:
    blocks = extension("formula_blocks")
    lines = ["Text with |x|:", "", "    a*b = |c|", "", "Args:", "    x: ``|y|`` or |z|.", "C. Bishop, 2006."]
    found = blocks.escape_text(blocks.mark_formulas(lines))
    assert found[2:6] == [".. code-block:: text", "   :class: formula", "", "   a*b = |c|"]
    assert r"    x: ``|y|`` or \|z\|." in found
    assert found[0] == r"Text with \|x\|:"
    assert found[-1] == r"C\. Bishop, 2006."


def test_korean_words_are_found_without_their_particles(extension: Any) -> None:
    pytest.importorskip("sphinx")
    without_particle = extension("korean_search").without_particle
    forms = ["드롭아웃", "드롭아웃을", "드롭아웃은", "드롭아웃으로", "드롭아웃에서의"]
    assert {without_particle(form) for form in forms} == {"드롭아웃"}
    assert without_particle("분산을") == "분산"
    assert without_particle("평가") == "평가"  # two syllables stay


def test_translations_have_the_formulas_code_and_links_of_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("babel")
    pytest.importorskip("mdit_py_plugins")
    monkeypatch.syspath_prepend(str(DOCS))
    translations = importlib.import_module("translations")
    original = r"The **evidence** $p(D)$ of `x`, [here](a.md#b)"
    assert not list(translations.defects(original, "[여기](a.md#b) `x`의 **증거**(evidence) $p(D)$. $p(D)$는"))
    found = list(translations.defects(original, "[여기](a.md) `y`의 **증거(evidence)**는 $p(d)$"))
    assert [line.partition(" of:")[0] for line in found] == [
        *(f"not in the translation: {part}" for part in ("a.md#b", "p(D)", "x")),
        *(f"only in the translation: {part}" for part in ("a.md", "p(d)", "y")),
        "stray asterisk: 의 **증거(evidence)**는 ",
    ]
    assert list(translations.defects("\\frac{1}{2}", "\\frac{1}{3}"))
    for path in translations.CATALOGUES.rglob("*.po"):
        with path.open("rb") as file:
            catalog = translations.read_po(file, locale="ko")
        pairs = [(message.id, message.string) for message in catalog if message.id and message.string]
        assert [line for pair in pairs for line in translations.defects(*pair)] == [], path


def test_formulas_that_cannot_be_converted_are_errors(extension: Any) -> None:
    pytest.importorskip("latex2mathml")
    to_mathml = extension("mathml").to_mathml
    assert "<mi>𝔼</mi>" in to_mathml(r"\mathbb E_q", "inline").replace("&#x1D53C;", "𝔼")
    assert to_mathml(r"\begin{aligned} a &= b \\ &= c \end{aligned}", "block").count("<mtr>") == 2
    assert "arg" in to_mathml(r"\operatorname*{arg\,max}_{\theta} f", "block")
    nested = to_mathml(r"\underbrace{\underbrace{a}_b + \underset{c}{d}}_e", "block")
    assert nested.count('class="underbrace"') == 2
    assert nested.count("<munder>") == nested.count("</munder>") == 3
    for wrong in (r"\unknown x", "a & b"):
        with pytest.raises(ValueError, match="cannot be converted"):
            to_mathml(wrong, "inline")


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_as_it_stands_and_draws(example: Path, tmp_path: Path) -> None:
    code = (
        "import sys, runpy, matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\n"
        f"runpy.run_path({str(example)!r}, run_name='__main__')\nassert plt.get_fignums()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx_gallery")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-q",
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-d",
        str(tmp_path / "doctrees"),
    ]
    subprocess.run([*command, str(DOCS), str(tmp_path / "html")], check=True)
    assert (tmp_path / "html" / "api" / "generated" / "credo.BayesByBackprop.html").exists()
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//[^\"]*\"")
    pages = (tmp_path / "html").rglob("*.html")
    outside = {match for page in pages for match in loaded.findall(page.read_text(encoding="utf-8"))}
    assert not outside, "requests to other hosts"
