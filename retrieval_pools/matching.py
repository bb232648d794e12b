"""Where a row's last tokens have occurred before: the matches its draft tree starts from."""

from typing import Any

import numpy as np

from retrieval_pools.compiled import (
    Growth,
    Limits,
    Sources,
    array,
    flag,
    growth,
    ids,
    integer,
    kernel,
    limits,
    nothing,
    row,
    sources,
)
from retrieval_pools.row_texts import NOWHERE
from retrieval_pools.suffix_array import SEPARATOR
from retrieval_pools.trie import find, longest_match, run_end

PREVIOUS, OWN, GROUP, GLOBAL = range(4)  # as in pipeline.schemas.SOURCES
NODES_USED, STATES_USED, QUEUE_USED, LOCAL_USED = range(4)  # fields of Growth.used

START_WORTH = 4  # a match that begins where the text begins tells as much as 4 tokens more
OCCURRENCES = 16  # taken of a match in a row's own or previous text, most recent first
MATCHES = 3  # of one source, longest first
_ENOUGH = 8  # occurrences that make a shorter match superfluous


@kernel(nothing(growth, integer, integer, integer, integer, integer))
def _add_match(growth: Growth, source: int, base: int, match: int, lo: int, hi: int) -> None:
    """Let the tree start from the suffixes [lo, hi) of `source`."""
    place = growth.used[STATES_USED]
    growth.used[STATES_USED] += 1
    state, root = growth.states[place], growth.nodes[0]
    state.source = source
    state.base = base
    state.match = match
    state.lo = lo
    state.hi = hi
    state.next = root.state
    root.state = place


@kernel(integer(growth, sources, integer, integer, integer, row, limits, integer))
def match_pool(
    growth: Growth,
    sources: Sources,
    source: int,
    lo: int,
    hi: int,
    row: Any,
    limits: Limits,
    hint: int,
) -> int:
    """Add the matches of a row's end in a pool; return the length of the longest, the next hint.

    First all of the output against the starts of documents, then the longest match, then halves
    of it, until one has occurred often enough to be believed.
    """
    if lo == hi:
        return hint
    index = sources.group if source == GROUP else sources.everything
    context, end = sources.local.text, row.own_end
    longest = min(limits.match, 2 * limits.order // 3)  # the rest counts what follows
    output = end - row.output_first
    if output < longest:
        starts = run_end(index, lo, hi, 0, SEPARATOR)
        begin, after = find(index, lo, starts, 1, context, row.output_first, output)
        if begin < after:
            _add_match(growth, source, output + 1, output + START_WORTH, begin, after)
        if after - begin >= _ENOUGH:
            return hint
    first = max(row.own_first, end - longest)
    length, begin, after = longest_match(index, lo, hi, context, first, end, hint)
    hint, size = length, 0
    for _ in range(MATCHES):
        if after - begin > size:
            size = after - begin
            _add_match(growth, source, length, length, begin, after)
        if size >= _ENOUGH or length <= 1:
            break
        length //= 2
        begin, after = find(index, lo, hi, 0, context, end - length, length)
    return hint


@kernel(integer(growth, sources, integer, row, integer))
def _candidates(growth: Growth, sources: Sources, source: int, row: Any, longest: int) -> int:
    """Find places in own or previous text that the row's last tokens lead up to; return how many.

    Most recent first. The text's end is not among them: nothing follows it.
    """
    text, last = sources.local.text, row.own_end - 1
    first, latest = row.own_first, row.own_latest
    if source == PREVIOUS:
        first, latest = row.previous_first, row.previous_latest
    limit = min(longest, row.own_end - row.own_first)
    output = row.own_end - row.output_first
    count = 0
    while latest != NOWHERE and count < len(growth.places):
        length, before = 0, latest + 1 - first
        while length < min(limit, before) and text[latest - length] == text[last - length]:
            length += 1
        if source == PREVIOUS and length == before == output:  # own text starts with the prompt
            length += START_WORTH
        growth.places[count] = latest + 1
        growth.lengths[count] = length
        count += 1
        latest = sources.earlier[latest]
    if (
        source == PREVIOUS
        and output == 0
        and count < len(growth.places)
        and first < row.previous_end
    ):
        growth.places[count] = first
        growth.lengths[count] = START_WORTH
        count += 1
    return count


@kernel(flag(ids, integer, integer, integer))
def _follows(text: np.ndarray, one: int, other: int, depth: int) -> bool:
    """Whether the suffix at `one` sorts after the one at `other`."""
    for offset in range(depth):
        difference = text[one + offset] - text[other + offset]
        if difference != 0:
            return difference > 0
    return one > other


@kernel(nothing(ids, array(np.int32), integer, integer, integer, integer))
def _insert(text: np.ndarray, local: np.ndarray, lo: int, hi: int, place: int, depth: int) -> None:
    """Insert a suffix into the sorted local suffixes [lo, hi)."""
    while hi > lo and _follows(text, local[hi - 1], place, depth):
        local[hi] = local[hi - 1]
        hi -= 1
    local[hi] = place


@kernel(nothing(growth, sources, integer, row, limits))
def match_text(growth: Growth, sources: Sources, source: int, row: Any, limits: Limits) -> None:
    """Add the matches of a row's end in its own or previous text, sorted by what follows."""
    text, count = sources.local.text, _candidates(growth, sources, source, row, limits.match)
    length, size = 0, 0
    for candidate in range(count):
        length = max(length, growth.lengths[candidate])
    for _ in range(MATCHES):
        if size >= _ENOUGH or length < 1:
            break
        lo = growth.used[LOCAL_USED]
        hi = lo
        for candidate in range(count):
            if growth.lengths[candidate] >= length and hi - lo < OCCURRENCES:
                _insert(text, growth.local, lo, hi, growth.places[candidate], limits.depth)
                hi += 1
        if hi - lo > size:
            size = hi - lo
            growth.used[LOCAL_USED] = hi
            _add_match(growth, source, 0, length, lo, hi)
        length //= 2
