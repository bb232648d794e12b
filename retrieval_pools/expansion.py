"""Draft trees, grown best first from every source of a row at once.

A draft node carries a *state*, an interval of suffixes, for every match that leads to it: no
guess appears twice, and a node's children come from all sources that know it. A child's survival
is its parent's times P(accepted | parent accepted), the highest that any of its states claims, so
nodes are taken in the order of their survival, parents first, and the first n are the best n.

An occurrence in relaxed text counts half, so weights are counted in halves.
"""

from typing import Any

import numpy as np

from retrieval_pools.compiled import (
    CHILD,
    NODE,
    ROW,
    STATE,
    Cells,
    Growth,
    Limits,
    Sources,
    Trees,
    array,
    cells,
    flag,
    growth,
    integer,
    kernel,
    limits,
    nothing,
    real,
    row,
    sources,
    trees,
)
from retrieval_pools.marks import marked
from retrieval_pools.matching import (
    GLOBAL,
    GROUP,
    NODES_USED,
    OCCURRENCES,
    OWN,
    PREVIOUS,
    QUEUE_USED,
    STATES_USED,
    match_pool,
    match_text,
)
from retrieval_pools.trie import children

# Places in own or previous text that follow the row's last token, most recent first.
_CANDIDATES = 256
_PROBES = 48  # children of the root with 1/48, 2.1 %, of the occurrences are never overlooked
_SPARE = 64  # nodes and states reserved for every draft node; what exceeds them is not drafted
_NONE = -1


@kernel(nothing(growth, integer, integer, integer), inline=True)
def _attach(growth: Growth, node: int, number: int, place: int) -> None:
    """Add the state that child `number` of state `place` gives, unless one says the same.

    Two states of as many suffixes, the first of them at the same place of the same text, are the
    same occurrences under two matches; the longer one or, failing that, the better source stays.
    """
    states, used = growth.states, growth.used
    child, origin = growth.children[number], growth.states[place]
    text_place = child.place + origin.base
    twin = growth.nodes[node].state
    while twin != _NONE and not (
        states[twin].hi - states[twin].lo == child.hi - child.lo
        and states[twin].place == text_place
        and (states[twin].source <= OWN) == (origin.source <= OWN)
    ):
        twin = states[twin].next
    if twin == _NONE:
        twin = used[STATES_USED]
        used[STATES_USED] += 1
        states[twin].next = growth.nodes[node].state
        states[twin].match = _NONE
        growth.nodes[node].state = twin
    if states[twin].match < origin.match or (
        states[twin].match == origin.match and states[twin].source > origin.source
    ):
        states[twin].source = origin.source
        states[twin].base = origin.base
        states[twin].match = origin.match
        states[twin].lo = child.lo
        states[twin].hi = child.hi
        states[twin].place = text_place


@kernel(nothing(growth, integer, integer, integer, integer, real), inline=True)
def _offer(
    growth: Growth, first: int, number: int, place: int, bucket: int, probability: float
) -> None:
    """Give child `number` of state `place` to the sibling, from `first` on, with its token.

    The sibling keeps the highest probability that any of its states gives it.
    """
    nodes, used = growth.nodes, growth.used
    token, source = growth.children[number].token, growth.states[place].source
    node = first
    while node < used[NODES_USED] and nodes[node].token != token:
        node += 1
    if used[STATES_USED] == len(growth.states) or node == len(nodes):
        return
    if node == used[NODES_USED]:
        used[NODES_USED] += 1
        nodes[node].token = token
        nodes[node].state = _NONE
        nodes[node].survival = -1.0
    _attach(growth, node, number, place)
    gain = probability - nodes[node].survival
    if gain > 0.0 or (gain == 0.0 and source < nodes[node].source):
        nodes[node].survival = probability
        nodes[node].source = source
        nodes[node].bucket = bucket


@kernel(integer(sources, integer, integer, integer), inline=True)
def _halves(sources: Sources, source: int, lo: int, hi: int) -> int:
    """The weight of the suffixes [lo, hi): two halves each, but one in relaxed text."""
    halves = 2 * (hi - lo)
    if source == GROUP:
        halves -= marked(sources.group_marks, lo, hi)
    elif source == GLOBAL:
        halves -= marked(sources.global_marks, lo, hi)
    return halves


@kernel(nothing(growth, integer, integer, integer, sources, cells, limits), inline=True)
def _expand_state(
    growth: Growth,
    parent: int,
    place: int,
    first: int,
    sources: Sources,
    cells: Cells,
    limits: Limits,
) -> None:
    """Offer the children of one state of a node to the siblings from `first` on."""
    state, depth = growth.states[place], growth.nodes[parent].depth
    survival = growth.nodes[parent].survival
    lo, hi, shared = state.lo, state.hi, state.base + depth
    index = sources.local
    if state.source == GROUP:
        index = sources.group
    elif state.source == GLOBAL:
        index = sources.everything
    if state.source >= GROUP and shared >= limits.order:
        lo = hi - 1  # no order below this depth: follow the latest document
    probes = max(OCCURRENCES, min(_PROBES, int(2.0 * survival / limits.floor)))
    count = children(index, lo, hi, shared, probes, growth.children)
    if state.source == OWN and count > 0:
        lo = growth.children[0].lo  # that the text has ended here, so far, is no evidence
    whole = _halves(sources, state.source, lo, hi)
    for number in range(count):
        child = growth.children[number]
        share = 100 * _halves(sources, state.source, child.lo, child.hi) // whole
        bucket = (
            cells.source[state.source]
            + cells.match[min(state.match + depth, len(cells.match) - 1)]
            + cells.occurrences[min(whole, len(cells.occurrences) - 1)]
            + cells.share[share]
        )
        if survival * cells.probability[bucket] >= limits.floor:
            _offer(growth, first, number, place, bucket, cells.probability[bucket])


@kernel(nothing(growth, integer), inline=True)
def _enqueue(growth: Growth, node: int) -> None:
    """Queue a candidate behind its betters and, among equals, behind its elders."""
    nodes, queue, place = growth.nodes, growth.queue, growth.used[QUEUE_USED]
    while place > 0 and nodes[queue[place - 1]].survival >= nodes[node].survival:
        queue[place] = queue[place - 1]
        place -= 1
    queue[place] = node
    growth.used[QUEUE_USED] += 1


@kernel(nothing(growth, integer, integer, sources, cells, limits))
def _expand(
    growth: Growth, parent: int, number: int, sources: Sources, cells: Cells, limits: Limits
) -> None:
    """Create the children of a node, `number` in the tree, and queue those worth drafting."""
    nodes, used = growth.nodes, growth.used
    first = used[NODES_USED]
    place = nodes[parent].state
    while place != _NONE:
        _expand_state(growth, parent, place, first, sources, cells, limits)
        place = growth.states[place].next
    for node in range(first, used[NODES_USED]):
        nodes[node].parent = number
        nodes[node].depth = nodes[parent].depth + 1
        nodes[node].survival *= nodes[parent].survival
        _enqueue(growth, node)


@kernel(integer(growth, row, sources, cells, limits, trees, integer, integer))
def _grow(
    growth: Growth,
    row: Any,
    sources: Sources,
    cells: Cells,
    limits: Limits,
    trees: Trees,
    begin: int,
    max_nodes: int,
) -> int:
    """Take the best candidate, expand it, and so on until the tree is full; return its end."""
    nodes, end = growth.nodes, begin
    _expand(growth, 0, _NONE, sources, cells, limits)
    while end - begin < max_nodes and growth.used[QUEUE_USED] > 0:
        growth.used[QUEUE_USED] -= 1
        node = growth.queue[growth.used[QUEUE_USED]]
        trees.token_ids[end] = nodes[node].token
        trees.parents[end] = nodes[node].parent
        trees.survival[end] = nodes[node].survival
        trees.sources[end] = nodes[node].source
        trees.buckets[end] = nodes[node].bucket
        if nodes[node].depth < row.max_depth:
            _expand(growth, node, end - begin, sources, cells, limits)
        end += 1
    return end


@kernel(growth(integer, array(np.int32)), owns_arrays=True)
def _new_growth(max_nodes: int, local: np.ndarray) -> Growth:
    capacity = _SPARE * (max_nodes + 1)
    return Growth(
        np.empty(capacity, NODE),
        np.empty(capacity, STATE),
        np.empty(_PROBES, CHILD),
        np.empty(capacity, np.int32),
        local,
        np.empty(_CANDIDATES, np.int32),
        np.empty(_CANDIDATES, np.int32),
        np.zeros(4, np.int64),
    )


@kernel(trees(integer, integer), owns_arrays=True)
def _new_trees(rows: int, max_nodes: int) -> Trees:
    return Trees(
        np.empty(rows * max_nodes, np.int32),
        np.empty(rows * max_nodes, np.int32),
        np.empty(rows * max_nodes, np.float32),
        np.empty(rows * max_nodes, np.int8),
        np.empty(rows * max_nodes, np.int32),
        np.empty(rows, np.int64),
    )


@kernel(
    trees(array(ROW, readonly=True), sources, array(np.int32), flag, cells, limits, integer),
    owns_arrays=True,
)
def draft(
    rows: np.ndarray,
    sources: Sources,
    local: np.ndarray,
    own: bool,
    cells: Cells,
    limits: Limits,
    max_nodes: int,
) -> Trees:
    """Draft a tree of at most `max_nodes` nodes for every row, (rows,) ROW.

    `local` (2 * MATCHES * OCCURRENCES,) int32 is the memory of the local index's suffixes; `own`
    says whether to draft from a row's own text.
    """
    trees = _new_trees(len(rows), max_nodes)
    growth = _new_growth(max_nodes, local)
    everything, end = len(sources.everything.suffixes), 0
    for number in range(len(rows)):
        row = rows[number]
        if row.max_depth > 0:
            growth.used[:] = 0
            growth.used[NODES_USED] = 1
            growth.nodes[0].state = _NONE
            growth.nodes[0].depth = 0
            growth.nodes[0].survival = 1.0
            match_text(growth, sources, PREVIOUS, row, limits)
            if own:
                match_text(growth, sources, OWN, row, limits)
            hint = match_pool(growth, sources, GROUP, row.group_lo, row.group_hi, row, limits, 0)
            match_pool(growth, sources, GLOBAL, 0, everything, row, limits, hint)
            end = _grow(growth, row, sources, cells, limits, trees, end, max_nodes)
        trees.ends[number] = end
    return trees
