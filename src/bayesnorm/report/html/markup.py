"""HTML that is escaped by construction: text becomes markup in :func:`tag` alone."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = {"meta", "link", "input", "img", "wbr"}
"""Elements without an end."""

SEPARATORS = "+/_"

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def escape(value: object) -> Html:
    """A value as text of a page; characters that HTML does not allow become U+FFFD.

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return value if isinstance(value, Html) else Html(html.escape(_CONTROL.sub("\ufffd", str(value))))


def join(*children: object) -> Html:
    """Children one after the other: markup as it is, iterables flattened, None left out, all else escaped."""
    return Html("".join(_pieces(children)))


def _pieces(children: Iterable[object]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Iterable) and not isinstance(child, str):
            yield from _pieces(child)
        else:
            yield escape(child)


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element.

    Arguments:
        name: of the element.
        children: see :func:`join`.
        attributes: ``class_`` is written ``class``, ``aria_label`` is written ``aria-label``; those that are None or
            False are left out, True has no value.

    >>> tag("a", "1 < 2", href="#x", class_="y", hidden=True, title=None)
    '<a href="#x" class="y" hidden>1 &lt; 2</a>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    end = "" if name in VOID else f"{join(*children)}</{name}>"
    return Html(f"<{name}{written}>{end}")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'


def hidden(text: str) -> Html:
    """Text for screen readers only."""
    return tag("span", text, class_="sr")


def unseen(text: str) -> Html:
    """Text for the eye only."""
    return tag("span", text, aria_hidden="true")


def breakable(name: str) -> Html:
    """A name that may go on in the next line after each of its parts.

    >>> breakable("batch+projection")
    'batch+<wbr>projection'
    """
    return join(
        *(part if part not in SEPARATORS else (part, tag("wbr")) for part in re.split(f"([{SEPARATORS}])", name))
    )
