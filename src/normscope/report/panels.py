"""Panels of the report page: what other measurements of a model found, each as sections with charts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from normscope.analysis.bounds.result import BoundsResult
from normscope.curvature.result import CurvatureResult
from normscope.geometry.discover import Symmetries
from normscope.report.bounds import bounds_sections
from normscope.report.curvature import curvature_sections
from normscope.report.symmetry import symmetry_sections
from normscope.report.table import Section
from normscope.report.weight_normalization import weight_normalization_sections
from normscope.weight_normalization.guarantees import Guarantees

#: What can be shown on a page beside a capacity result.
Panel: TypeAlias = CurvatureResult | BoundsResult | Guarantees | Symmetries


def panel_sections(panels: Sequence[Panel]) -> list[Section]:
    """Return the sections of panels, in their order, each chart under a name of its own."""
    found = [section for panel in panels for section in _sections(panel)]
    return [
        section if section.chart is None else replace(section, chart=replace(section.chart, id=f"panel{k}"))
        for k, section in enumerate(found)
    ]


def _sections(panel: Panel) -> list[Section]:
    if isinstance(panel, CurvatureResult):
        return curvature_sections(panel, everything=True)
    if isinstance(panel, BoundsResult):
        return bounds_sections(panel)
    if isinstance(panel, Guarantees):
        return weight_normalization_sections(panel)
    return symmetry_sections(panel, everything=True)
