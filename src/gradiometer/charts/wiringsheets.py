"""Where the diagram of a loss lies: on a wide sheet, columns from left to right; on a phone, a
list from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradiometer.charts.drawing import (
    Attributes,
    Drawing,
    Element,
    Sheet,
    balanced,
    cut,
    lines_at,
    text_at,
    text_width,
    typeset,
    wrapped,
)
from gradiometer.charts.wiring import Conflict, CreditShares, LossDiagram, Strand, block_said
from gradiometer.store.wiring import LossTerm

__all__ = ["draw_wiring", "narrow_sheet", "wide_sheet"]

WIDTH, MARGIN = 1120.0, 36.0
LOSS_WIDTH, TERM_LEFT, TERM_WIDTH = 148.0, 296.0, 304.0
BLOCK_LEFT, BLOCK_WIDTH = 852.0, 232.0
GAP = 22.0
"""Between cards of a column."""
PORT = 38.0
"""Between strands at the edge of a card."""
PAD = 16.0
THIN, THICK = 1.6, 20.0
"""Of a strand, in pixels: the widest has the largest norm, none is thinner than the first."""
PHONE, PHONE_MARGIN = 390.0, 16.0
DEAD = "No gradient: it is in the loss, but it trains no weight. Look for no_grad, detach, .item()"
OFF = "multiplied by zero"
NOBODY = "no term of the loss reaches it"
MEETS = "Every sample meets every other: it"


def draw_wiring(diagram: LossDiagram, go: str = "") -> Drawing:
    """The drawing; a strand leads to the chart `<go><block>`."""
    return Drawing(
        title=f"{diagram.headline()}. {_about(diagram)}",
        wide=wide_sheet(diagram, go),
        narrow=narrow_sheet(diagram, go),
    )


def _about(diagram: LossDiagram) -> str:
    error = diagram.wiring.additivity_error
    exact = error is not None and error < 1e-6
    proof = (
        ""
        if error is None
        else " · the terms add up to the whole gradient"
        if exact
        else f" · the terms miss {typeset(error, 1)} of the gradient"
    )
    return f"{diagram.run} · step {diagram.step:,}{proof}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A place in a column."""

    top: float
    height: float

    @property
    def middle(self) -> float:
        """Halfway down."""
        return self.top + self.height / 2


def _stacked(heights: Sequence[float], top: float, room: float) -> list[_Card]:
    """Cards below each other, in the middle of the room."""
    whole = sum(heights) + GAP * max(len(heights) - 1, 0)
    at = top + max(0.0, (room - whole) / 2)
    cards = []
    for height in heights:
        cards.append(_Card(top=at, height=height))
        at += height + GAP
    return cards


def _thickness(norm: float | None, widest: float) -> float:
    if norm is None or widest <= 0.0:
        return THIN
    return max(THIN, THICK * norm / widest)


def _norm_said(norm: float | None) -> str:
    return "not measured" if norm is None else typeset(norm)


def _reason(term: LossTerm) -> str:
    if not term.alive:
        return DEAD
    if term.wrong:
        return f"{MEETS} {term.wrong}"
    return OFF if term.coefficient == 0.0 else ""


def _coefficient(term: LossTerm) -> str:
    times = term.coefficient
    return "" if times is None or times == 1.0 else f"{typeset(times)} × "


def _adds(term: LossTerm) -> str:
    return "" if term.value is None else f"adds {typeset(term.value)} to the loss"


# The wide sheet


def wide_sheet(diagram: LossDiagram, go: str = "") -> Sheet:
    """Loss, terms and blocks in three columns."""
    title = balanced(diagram.headline(), 25, WIDTH - 2 * MARGIN, bold=True)
    top = 56 + 32 * len(title) + 62
    term_heights = [_term_height(diagram, term) for term in diagram.terms]
    block_heights = [_block_height(diagram, block) for block in diagram.blocks]
    room = max(_whole(term_heights), _whole(block_heights), 150.0)
    cards = dict(
        zip([each.name for each in diagram.terms], _stacked(term_heights, top, room), strict=True)
    )
    blocks = dict(zip(diagram.blocks, _stacked(block_heights, top, room), strict=True))
    shapes = [
        *lines_at(MARGIN, 56, title, leading=32, size=25, weight=680, letter_spacing="-0.01em"),
        text_at(MARGIN, 56 + 32 * len(title) - 4, _about(diagram), size=14, ink="muted"),
        *_headings(top - 20),
        *_losses(diagram, cards),
        *_strands(diagram, cards, blocks, go),
        *(shape for term in diagram.terms for shape in _term_card(diagram, term, cards[term.name])),
        *(
            shape
            for block in diagram.blocks
            for shape in _block_card(diagram, block, blocks[block], go)
        ),
        *_legend(diagram, top + room + 46),
    ]
    return Sheet(width=WIDTH, height=top + room + 72, shapes=shapes)


def _whole(heights: Sequence[float]) -> float:
    return sum(heights) + GAP * max(len(heights) - 1, 0)


def _headings(y: float) -> Iterator[Element]:
    for x, text in ((MARGIN, "LOSS"), (TERM_LEFT, "ITS TERMS"), (BLOCK_LEFT, "WHAT THEY TRAIN")):
        yield text_at(x, y, text, size=11.5, ink="muted", weight=600, letter_spacing="0.09em")


def _credit_room(diagram: LossDiagram, term: LossTerm) -> float:
    """How high the credit of a policy's term is; 0 of others."""
    if diagram.credit is None or diagram.role(term) != "policy" or not term.alive:
        return 0.0
    return 48.0 if diagram.credit.return_correlation is None else 65.0


def _term_height(diagram: LossDiagram, term: LossTerm) -> float:
    lines = len(wrapped(_reason(term), 12.5, TERM_WIDTH - 2 * PAD - 6)) if _reason(term) else 0
    words = 38.0 + (21 if _adds(term) else 0) + 17 * lines + (4 if lines else 0)
    words += _credit_room(diagram, term)
    ports = sum(strand.term == term.name for strand in diagram.strands)
    return max(words + 12, ports * 26.0 + 12, 62.0)


def _block_height(diagram: LossDiagram, block: str) -> float:
    ports = sum(strand.block == block for strand in diagram.strands)
    conflicts = sum(each.block == block for each in diagram.conflicts[:3])
    return max(62.0, PORT * ports + 24, 58.0 + 36 * min(conflicts, 2) if conflicts else 0.0)


def _card_shape(
    x: float, card: _Card, width: float, *, dead: bool = False, title: str = ""
) -> Element:
    at: Attributes = {
        "x": x,
        "y": card.top,
        "width": width,
        "height": card.height,
        "rx": 10,
        "fill": "critical-soft" if dead else "card",
        "stroke": "critical" if dead else "line",
        "stroke-width": 1.2,
    }
    return Element(tag="rect", at=at | ({"stroke-dasharray": "5 4"} if dead else {}), title=title)


def _losses(diagram: LossDiagram, cards: dict[str, _Card]) -> Iterator[Element]:
    """A node for each backward, and a line from it to each of its terms."""
    for backward in range(1, diagram.wiring.backwards + 1):
        terms = [term for term in diagram.terms if term.backward == backward]
        if terms:
            yield from _loss(diagram, terms, cards, backward)


def _loss(
    diagram: LossDiagram, terms: Sequence[LossTerm], cards: dict[str, _Card], backward: int
) -> Iterator[Element]:
    whole = diagram.wiring.backwards == 1
    middle = (cards[terms[0].name].middle + cards[terms[-1].name].middle) / 2
    own = _Card(top=middle - 44, height=88)
    inks = diagram.inks()
    right, widest = MARGIN + LOSS_WIDTH, diagram.widest
    for place, term in enumerate(terms):
        begin = middle + (place - (len(terms) - 1) / 2) * min(22.0, 60.0 / len(terms))
        end = cards[term.name].middle
        if term.alive and term.coefficient != 0.0:
            width = _thickness(diagram.norm_of(term.name), widest)
            yield _curve(right, begin, TERM_LEFT, end, ink=inks[term.name], width=width)
        else:
            yield _broken(right, begin, TERM_LEFT, end, dead=not term.alive)
    yield _card_shape(MARGIN, own, LOSS_WIDTH)
    values = [term.value for term in terms if term.value is not None]
    value = diagram.wiring.loss if whole else sum(values) if len(values) == len(terms) else None
    name = "loss" if whole else f"loss {backward}"
    centre = MARGIN + LOSS_WIDTH / 2
    if value is None:
        yield text_at(centre, middle + 7, name, size=20, weight=650, anchor="middle")
        return
    yield text_at(centre, middle - 12, name, size=13, ink="muted", anchor="middle")
    said = typeset(value)
    size = 25 if text_width(said, 25, bold=True) < LOSS_WIDTH - 20 else 17
    yield text_at(centre, middle + 20, said, size=size, weight=680, anchor="middle")


def _curve(x0: float, y0: float, x1: float, y1: float, *, ink: str, width: float) -> Element:
    """A soft line from left to right."""
    bend = (x1 - x0) * 0.5
    path = f"M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    at: Attributes = {
        "d": path,
        "fill": "none",
        "stroke": ink,
        "stroke-width": width,
        "stroke-opacity": 0.62,
    }
    return Element(tag="path", at=at)


def _broken(x0: float, y0: float, x1: float, y1: float, *, dead: bool) -> Element:
    solid = _curve(x0, y0, x1, y1, ink="critical" if dead else "faint", width=1.8)
    return Element(tag="path", at={**solid.at, "stroke-dasharray": "3 5", "stroke-opacity": 1})


def _cross(x: float, y: float) -> Iterator[Element]:
    """The sign that a line ends here."""
    yield Element(tag="circle", at={"cx": x, "cy": y, "r": 10, "fill": "critical"})
    reach = 3.6
    down, up = f"{2 * reach:g} {2 * reach:g}", f"0 {-2 * reach:g}"
    path = f"M{x - reach:g} {y - reach:g}l{down}m{up}l-{down}"
    yield Element(
        tag="path",
        at={
            "d": path,
            "stroke": "paper",
            "stroke-width": 2.2,
            "fill": "none",
            "stroke-linecap": "round",
        },
    )


def _ports(card: _Card, count: int) -> list[float]:
    """Heights at which strands meet the edge of a card."""
    apart = min(PORT, (card.height - 20) / max(count, 1))
    return [card.middle + (place - (count - 1) / 2) * apart for place in range(count)]


def _strands(
    diagram: LossDiagram, cards: dict[str, _Card], blocks: dict[str, _Card], go: str
) -> Iterator[Element]:
    inks, ends = diagram.inks(), _ends(diagram, blocks)
    left = TERM_LEFT + TERM_WIDTH
    for term in diagram.terms:
        own = [strand for strand in diagram.strands if strand.term == term.name]
        for begin, strand in zip(_ports(cards[term.name], len(own)), own, strict=True):
            end = ends[strand.term, strand.block]
            yield from _strand(strand, left, begin, end, inks[term.name], diagram.widest, go)
        if not term.alive:
            yield from _dead_end(cards[term.name].middle, list(ends.values()))


def _dead_end(y: float, ends: Sequence[float]) -> Iterator[Element]:
    """A line that stops, with words where no number of a strand stands."""
    left = TERM_LEFT + TERM_WIDTH
    yield _broken(left, y, left + 74, y, dead=True)
    yield from _cross(left + 84, y)
    if all(abs(end - y) > 24 for end in ends):
        yield text_at(left + 104, y + 5, "reaches no weight", size=13, ink="critical", weight=600)


def _ends(diagram: LossDiagram, blocks: dict[str, _Card]) -> dict[tuple[str, str], float]:
    """Where each strand meets its block."""
    found = {}
    for block, card in blocks.items():
        own = [strand for strand in diagram.strands if strand.block == block]
        for y, strand in zip(_ports(card, len(own)), own, strict=True):
            found[strand.term, block] = y
    return found


def _strand(
    strand: Strand, left: float, begin: float, end: float, ink: str, widest: float, go: str
) -> Iterator[Element]:
    said = _norm_said(strand.norm)
    title = f"{strand.term} into {block_said(strand.block)}: gradient norm {said}"
    leads = f"{go}{strand.block}" if go else ""
    width = _thickness(strand.norm, widest)
    if strand.norm == 0.0:
        yield _broken(left, begin, BLOCK_LEFT, end, dead=True)
    else:
        yield _curve(left, begin, BLOCK_LEFT, end, ink=ink, width=width)
    touch = _curve(left, begin, BLOCK_LEFT, end, ink=ink, width=max(width, 18.0))
    yield Element(tag="path", at={**touch.at, "stroke-opacity": 0}, title=title, go=leads)
    wide = text_width(said, 13, bold=True) + 12
    at: Attributes = {
        "x": BLOCK_LEFT - 14 - wide,
        "y": end - 11,
        "width": wide,
        "height": 22,
        "rx": 11,
        "fill": "paper",
        "stroke": ink,
        "stroke-width": 1.2,
    }
    yield Element(tag="rect", at=at)
    yield text_at(BLOCK_LEFT - 14 - wide / 2, end + 4.5, said, size=13, weight=600, anchor="middle")


def _term_card(diagram: LossDiagram, term: LossTerm, card: _Card) -> Iterator[Element]:
    dead, off = not term.alive, term.coefficient == 0.0
    yield _card_shape(TERM_LEFT, card, TERM_WIDTH, dead=dead or bool(term.wrong))
    ink = "critical" if dead else "faint" if off else diagram.inks()[term.name]
    edge: Attributes = {
        "x": TERM_LEFT,
        "y": card.top + 10,
        "width": 5,
        "height": card.height - 20,
        "rx": 2.5,
    }
    yield Element(tag="rect", at={**edge, "fill": ink})
    yield from _term_words(diagram, term, TERM_LEFT + PAD + 6, card.top, TERM_WIDTH - 2 * PAD - 6)


def _term_words(
    diagram: LossDiagram, term: LossTerm, x: float, top: float, width: float
) -> Iterator[Element]:
    """Coefficient and name, what it adds, why it is dead, and the credit of a policy's."""
    dead = not term.alive
    times = _coefficient(term)
    role = diagram.role(term)
    tag = role if role and role not in term.name.lower() else ""
    room = width - text_width(times, 15) - text_width(tag, 12) - (10 if tag else 0)
    pen: Attributes = {"font-size": 17, "font-weight": "660"}
    pen["fill"] = "critical" if dead else "text"
    if dead:
        pen["text-decoration"] = "line-through"
    name = Element(tag="tspan", at=pen, text=cut(term.name, 17, room, bold=True))
    line = text_at(x, top + 29, times, size=15, ink="muted")
    yield replace(line, inside=[name])
    if tag:
        yield text_at(x + width, top + 29, tag, size=12, ink="muted", anchor="end")
    y = top + 29
    if _adds(term):
        y += 21
        yield text_at(x, y, _adds(term), size=13, ink="muted")
    if _reason(term):
        reason = wrapped(_reason(term), 12.5, width)
        said = "critical" if dead or term.wrong else "muted"
        yield from lines_at(x, y + 20, reason, leading=17, size=12.5, ink=said)
        y += 17 * len(reason) + 4
    if _credit_room(diagram, term) and diagram.credit is not None:
        yield from _credit_bar(diagram.credit, x, y + 18, width)


def _credit_bar(credit: CreditShares, x: float, y: float, width: float) -> Iterator[Element]:
    """Which samples this step makes more and less likely."""
    at, room = x, width - 4
    parts = (
        (credit.up, "0", "more likely"),
        (credit.down, "3", "less likely"),
        (credit.none, "faint", "untouched"),
    )
    for share, ink, words in parts:
        wide = share * room
        if wide >= 0.5:
            box: Attributes = {
                "x": at,
                "y": y,
                "width": max(wide - 2, 1),
                "height": 8,
                "rx": 2,
                "fill": ink,
            }
            yield Element(tag="rect", at=box, title=f"{share:.0%} of the samples are made {words}")
        at += wide
    said = f"samples: {credit.up:.0%} more likely, {credit.down:.0%} less"
    said += f", {credit.none:.0%} same" if credit.none >= 0.005 else ""
    yield text_at(x, y + 25, said, size=12.5, ink="muted")
    if credit.return_correlation is not None:
        said = f"follows the return paid: r = {typeset(credit.return_correlation, 2)}"
        yield text_at(x, y + 42, said, size=12.5, ink="muted")


def _block_card(diagram: LossDiagram, block: str, card: _Card, go: str) -> Iterator[Element]:
    dead = block in diagram.dead_blocks
    yield _card_shape(BLOCK_LEFT, card, BLOCK_WIDTH, dead=dead)
    conflicts = [each for each in diagram.conflicts if each.block == block][:2]
    x, norm = BLOCK_LEFT + PAD + 4, diagram.block_norms.get(block)
    words = (
        20
        + (19 if norm is not None and not dead else 0)
        + 36 * len(conflicts)
        + (19 if dead else 0)
    )
    top = card.middle - words / 2
    struck = {"text_decoration": "line-through"} if dead else {}
    ink = "critical" if dead else "text"
    name = cut(block_said(block), 17, BLOCK_WIDTH - 2 * PAD, bold=True)
    yield text_at(x, top + 15, name, size=17, weight=660, ink=ink, **struck)
    y = top + 15
    if dead:
        yield text_at(x, y + 19, NOBODY, size=12.5, ink="critical")
    elif norm is not None:
        y += 19
        yield text_at(x, y, f"gradient norm {typeset(norm)}", size=13, ink="muted")
    for place, conflict in enumerate(conflicts):
        yield from _conflict(conflict, x, y + 24 + 36 * place)


def _conflict(conflict: Conflict, x: float, y: float) -> Iterator[Element]:
    """Two arrows that meet, and which terms they are."""
    ink = "critical" if conflict.strong else "warn"
    right, left = "h8m-3.5 -3.5l3.5 3.5l-3.5 3.5", "h-8m3.5 -3.5l-3.5 3.5l3.5 3.5"
    path = f"M{x:g} {y - 4:g}{right}M{x + 22:g} {y - 4:g}{left}"
    pen: Attributes = {
        "stroke": ink,
        "stroke-width": 1.8,
        "fill": "none",
        "stroke-linecap": "round",
    }
    yield Element(tag="path", at={"d": path, **pen, "stroke-linejoin": "round"})
    word = "conflict" if conflict.strong else "at odds"
    said = f"{word}, cosine {typeset(conflict.cosine, 2)}"
    yield text_at(x + 30, y, said, size=12.5, ink=ink, weight=600)
    pair = cut(f"{conflict.first}, {conflict.second}", 12, BLOCK_WIDTH - 60)
    yield text_at(x + 30, y + 15, pair, size=12, ink="muted")


def _legend(diagram: LossDiagram, y: float) -> Iterator[Element]:
    if diagram.widest > 0:
        yield Element(
            tag="path",
            at={
                "d": f"M{MARGIN:g} {y - 4:g}h34",
                "stroke": "faint",
                "stroke-width": 8,
                "fill": "none",
            },
        )
        said = f"line width: gradient norm at this step; the widest is {typeset(diagram.widest)}"
        yield text_at(MARGIN + 46, y, said, size=12.5, ink="muted")
    yield text_at(
        WIDTH - MARGIN, y, "gradiometer", size=12.5, ink="muted", weight=600, anchor="end"
    )


# The phone's


def narrow_sheet(diagram: LossDiagram, go: str = "") -> Sheet:
    """The loss above, its terms below it, in each the blocks that it trains."""
    width = PHONE - 2 * PHONE_MARGIN
    title = balanced(diagram.headline(), 19, width, bold=True)
    about = wrapped(_about(diagram), 12.5, width)
    y = 34.0
    shapes = lines_at(PHONE_MARGIN, y, title, leading=24, size=19, weight=680)
    y += 24 * len(title)
    shapes += lines_at(PHONE_MARGIN, y, about, leading=17, size=12.5, ink="muted")
    y += 17 * len(about) + 12
    spine, begin = PHONE_MARGIN + 12, y
    loss = diagram.wiring.loss
    said = "loss" if loss is None else f"loss  {typeset(loss)}"
    shapes.append(text_at(PHONE_MARGIN, y + 18, said, size=18, weight=680))
    y += 36
    last = y
    for term in diagram.terms:
        height = _phone_height(diagram, term)
        last = y + 26
        shapes += _phone_term(diagram, term, y, height, go)
        y += height + 12
    line: Attributes = {
        "d": f"M{spine:g} {begin + 28:g}V{last:g}",
        "stroke": "faint",
        "stroke-width": 2,
    }
    shapes.insert(0, Element(tag="path", at={**line, "fill": "none"}))
    for block in diagram.dead_blocks:
        shapes.append(text_at(PHONE_MARGIN, y + 16, f"{block}: {NOBODY}", size=13, ink="critical"))
        y += 24
    for conflict in diagram.conflicts[:4]:
        shapes += _phone_conflict(conflict, y + 18)
        y += 44
    shapes.append(text_at(PHONE_MARGIN, y + 20, "line width: gradient norm", size=12, ink="muted"))
    shapes.append(
        text_at(
            PHONE - PHONE_MARGIN,
            y + 20,
            "gradiometer",
            size=12,
            ink="muted",
            weight=600,
            anchor="end",
        )
    )
    return Sheet(width=PHONE, height=y + 38, shapes=shapes)


PHONE_CARD = PHONE_MARGIN + 32
PHONE_ROW = 30.0


def _phone_words(diagram: LossDiagram, term: LossTerm) -> float:
    width = PHONE - PHONE_CARD - PHONE_MARGIN - 28
    lines = len(wrapped(_reason(term), 12.5, width)) if _reason(term) else 0
    words = 38.0 + (21 if _adds(term) else 0) + 17 * lines + (4 if lines else 0)
    return words + _credit_room(diagram, term)


def _phone_height(diagram: LossDiagram, term: LossTerm) -> float:
    return _phone_words(diagram, term) + PHONE_ROW * len(term.reaches) + 14


def _phone_term(
    diagram: LossDiagram, term: LossTerm, top: float, height: float, go: str
) -> Iterator[Element]:
    dead = not term.alive
    width = PHONE - PHONE_CARD - PHONE_MARGIN
    ink = "critical" if dead else diagram.inks()[term.name]
    spine = PHONE_MARGIN + 12
    branch: Attributes = {"d": f"M{spine:g} {top + 26:g}H{PHONE_CARD:g}", "stroke": ink}
    branch |= {"stroke-width": 2, "fill": "none"}
    yield Element(tag="path", at=branch | ({"stroke-dasharray": "3 4"} if dead else {}))
    if dead:
        yield from _cross(spine + 8, top + 26)
    own = _Card(top=top, height=height)
    yield _card_shape(PHONE_CARD, own, width, dead=dead or bool(term.wrong))
    edge: Attributes = {
        "x": PHONE_CARD,
        "y": top + 10,
        "width": 5,
        "height": height - 20,
        "rx": 2.5,
        "fill": ink,
    }
    yield Element(tag="rect", at=edge)
    yield from _term_words(diagram, term, PHONE_CARD + 16, top, width - 28)
    y = top + _phone_words(diagram, term) + PHONE_ROW / 2
    for strand in (each for each in diagram.strands if each.term == term.name):
        yield from _phone_strand(strand, y, ink, diagram.widest, go)
        y += PHONE_ROW


def _phone_strand(strand: Strand, y: float, ink: str, widest: float, go: str) -> Iterator[Element]:
    left, right, name = PHONE_CARD + 16, PHONE - PHONE_MARGIN - 14, 148.0
    thick = _thickness(strand.norm, widest)
    line = _curve(left, y, right - name - 12, y, ink=ink, width=thick)
    yield Element(tag="path", at=line.at)
    said = _norm_said(strand.norm)
    yield text_at(
        right - name,
        y + 4.5,
        cut(block_said(strand.block), 13.5, 92, bold=True),
        size=13.5,
        weight=650,
    )
    yield text_at(right, y + 4.5, said, size=13, anchor="end")
    touch: Attributes = {
        "x": left,
        "y": y - 14,
        "width": right - left,
        "height": 28,
        "fill": "paper",
        "opacity": 0,
    }
    title = f"{strand.term} into {block_said(strand.block)}: gradient norm {said}"
    yield Element(tag="rect", at=touch, title=title, go=f"{go}{strand.block}" if go else "")


def _phone_conflict(conflict: Conflict, y: float) -> Iterator[Element]:
    ink = "critical" if conflict.strong else "warn"
    said = f"{block_said(conflict.block)}: {conflict.first} against {conflict.second}"
    yield text_at(
        PHONE_MARGIN, y, cut(said, 13, PHONE - 40, bold=True), size=13, weight=600, ink=ink
    )
    words = f"cosine {typeset(conflict.cosine, 2)}"
    yield text_at(PHONE_MARGIN, y + 17, words, size=12.5, ink="muted")
