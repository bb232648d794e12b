"""Titles and genres of MovieLens as people write them."""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions at import time)

import pyarrow as pa
import pyarrow.compute as pc

# MovieLens moves an article behind the title: "Boot, Das", "Enfer, L'".
_ARTICLE = "The|An|A|La|Les|Le|Das|Der|Die|Det|Il|O"
_YEAR = r"\s*\((?P<year>[0-9]{4})(?:[-\x{2013}][0-9]{0,4})?\)\s*$"  # a series: from, to
_NO_GENRES = pa.array(["unknown", "(no genres listed)"])


def tidy_movies(
    title: pa.ChunkedArray,
    genres: pa.ChunkedArray,
    separator: str,
    year: pa.ChunkedArray | None = None,
) -> dict[str, pa.ChunkedArray]:
    """Columns title, year, genres (joined by ', ') and genre (the first of them).

    `separator` stands between genres. A year that is no number, or is not given, is the one in
    brackets at the end of the title, which goes.
    """
    years = pc.struct_field(pc.extract_regex(title, _YEAR), "year")
    if year is not None:
        years = pc.if_else(pc.match_substring_regex(year, "^[0-9]{4}$"), year, years)
    title = pc.replace_substring_regex(title, _YEAR, "")
    for pattern, replacement in (
        (rf"\(([^()]*), ({_ARTICLE})\)", r"(\2 \1)"),
        (r"\(([^()]*), (L')\)", r"(\2\1)"),
        (rf"^(.*), ({_ARTICLE})( \(.*\))?$", r"\2 \1\3"),
        (r"^(.*), (L')( \(.*\))?$", r"\2\1\3"),
    ):
        title = pc.replace_substring_regex(title, pattern, replacement)
    genres = pc.if_else(pc.is_in(genres, value_set=_NO_GENRES), "", genres)
    first = pc.struct_field(pc.extract_regex(genres, rf"^(?P<first>[^{separator}]+)"), "first")
    genres = pc.replace_substring(genres, separator, ", ")
    return {"title": title, "year": years, "genres": genres, "genre": first}
