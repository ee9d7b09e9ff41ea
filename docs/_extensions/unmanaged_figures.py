"""Pictures of figures that pyplot does not know: those of ``credo.plots.segmentation_maps`` and other whole figures."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


class UnmanagedFigures:
    """A scraper of sphinx-gallery: saves the figures among the variables of an example, once each."""

    def __repr__(self) -> str:
        return "UnmanagedFigures"  # part of the configuration, whose changes Sphinx looks for

    def __call__(self, block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
        paths = []
        for value in block_vars["example_globals"].values():
            if isinstance(value, Figure) and value.canvas.manager is None and not hasattr(value, "saved_by_gallery"):
                value.saved_by_gallery = True  # type: ignore[attr-defined]
                paths.append(next(block_vars["image_path_iterator"]))
                value.savefig(paths[-1], dpi=120)
        return figure_rst(paths, gallery_conf["src_dir"])
