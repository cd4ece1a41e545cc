"""Figures as `<svg>` elements of an HTML page: small, with the page's own font and colours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from matplotlib.figure import Figure

from .axes import BLUE, GREY, GRID, INK, NOT_XML, ORANGE, OUTLINE, PAPER, QUIET, render

PAGE_COLOURS = {
    INK: "var(--ink)",
    "#000000": "var(--ink)",
    QUIET: "var(--quiet)",
    GREY: "var(--edge)",
    GRID: "var(--grid)",
    PAPER: "var(--card)",
    OUTLINE: "var(--outline)",
    BLUE: "var(--accent)",
    ORANGE: "var(--infinite)",
}
"""Colours of all figures as variables of the page, which have values for light and dark."""

_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"(#|url\(#)([^)]+)(\)?)")
_DROPPED_STYLES = ("font-family", "stroke-linejoin", "stroke-linecap")
_UNPAINTED = ("fill:none", "fill:none;opacity:0")


def inline_svg(figure: Figure, name: str, label: str, colours: Mapping[str, str]) -> str:
    """A figure as an `<svg>` element.

    Text stays text, ids are unique on the page, and coordinates are rounded to a tenth of a point,
    which keeps a page with many figures small. The same figure always gives the same text.

    Guarantee: text of the data never becomes markup. The figure is parsed as XML and written
    again, with all text and all attributes escaped.

    Args:
        figure: The figure.
        name: A prefix for ids that no other figure of the page has.
        label: What the figure shows, for screen readers.
        colours: From colours of the figure (#rrggbb) to values of CSS, beside PAGE_COLOURS.
    """
    stream = StringIO()
    # the salt makes ids repeatable; text as text is smaller than outlines and can be searched
    settings = {"svg.hashsalt": name, "svg.fonttype": "none"}
    render(figure, stream, settings, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(stream.getvalue())
    # names matplotlib and its web address
    root.remove(root.findall("{*}metadata")[0])
    # matplotlib gives every group an id; only those of clips and marks are referred to
    used = {match[2] for match in map(_REFERENCE.fullmatch, _attributes(root)) if match}
    for element in root.iter():
        _simplify(element, name, PAGE_COLOURS | dict(colours), used)
    _drop_empty_groups(root)
    box = root.attrib["viewBox"]
    # without width and height: the page decides how large a figure is
    root.attrib.clear()
    root.attrib |= {"viewBox": box, "role": "img", "aria-label": NOT_XML.sub("?", label)}
    return ElementTree.tostring(root, encoding="unicode")


def _attributes(root: Element) -> list[str]:
    return [value for element in root.iter() for value in element.attrib.values()]


def _simplify(element: Element, name: str, colours: Mapping[str, str], used: set[str]) -> None:
    """Shortens one element, and makes its ids unique on the page."""
    # an HTML parser knows the elements inside <svg> without a namespace
    element.tag = element.tag.partition("}")[2]
    # line breaks between elements
    if element.tag != "text":
        element.text = None
    element.tail = None
    old, element.attrib = element.attrib, {}
    for key, value in old.items():
        if key == "id":
            if value in used:
                element.set("id", f"{name}-{value}")
        elif match := _REFERENCE.fullmatch(value):
            # browsers follow a plain href as well
            element.set("href" if key == _HREF else key, f"{match[1]}{name}-{match[2]}{match[3]}")
        elif key == "style":
            if style := _page_style(value, colours):
                element.set("style", style)
        # most text is not rotated, but matplotlib says so at each
        elif not value.startswith("rotate(-0 "):
            element.set(key, _round_numbers(value))


def _page_style(style: str, colours: Mapping[str, str]) -> str:
    parts = []
    for part in style.split(";"):
        key, _, value = (text.strip() for text in part.partition(":"))
        if key and key not in _DROPPED_STYLES:
            parts.append(f"{key}:{colours.get(value, _round_numbers(value))}")
    return ";".join(parts)


def _round_numbers(text: str) -> str:
    def shorten(match: re.Match[str]) -> str:
        value = float(match[0])
        # marks are drawn around 0, where a tenth of a point would be seen
        return f"{value:.1f}" if abs(value) >= 20 else f"{value:.2f}".rstrip("0").rstrip(".")

    return re.sub(r"-?\d+\.\d+(e-?\d+)?", shorten, " ".join(text.split()))


def _drop_empty_groups(parent: Element) -> None:
    """Removes groups without attributes, style sheets, and shapes that are not painted."""
    kept: list[Element] = []
    for child in parent:
        _drop_empty_groups(child)
        if child.tag == "g" and not child.attrib:
            kept += child
        # the style sheet of a figure would apply to the whole page
        elif child.tag != "style" and child.get("style") not in _UNPAINTED:
            if child.tag != "defs" or len(child):
                kept.append(child)
    parent[:] = kept
