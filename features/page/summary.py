"""The run in a few plain sentences, made from its numbers, for who has one minute.

A sentence never claims more than was measured: what was not, what had too little data, and what a
busy machine may have spoilt is said in the same breath.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from features.formats import count, duration, percent, unbroken
from features.measures import ratio
from features.page.about_gain import about_gain
from features.page.about_speed import about_speed
from features.page.paragraph import BAD, GOOD, OPEN, Paragraph, Report


def paragraphs(report: Report) -> list[Paragraph]:
    """What was done, how fast, whether a CTR model gains, and what failed."""
    return [_unbroken(part(report)) for part in (_done, about_speed, about_gain, _failed)]


def _unbroken(part: Paragraph) -> Paragraph:
    return part._replace(sentences=[unbroken(one) for one in part.sentences])


def _done(report: Report) -> Paragraph:
    headline, refresh = report["headline"], report["headline"]["refresh"]
    written, rows = headline["entities"], headline["of_rows"]
    by = f", written by {report['language_model']}" if report["language_model"] else ""
    said = [f"{count(written)} of {count(rows)} users and items have a text{by}."]
    if refresh:
        said.append(
            f"{count(refresh['kept'])} were kept from {refresh['previous']}, "
            f"{count(refresh['written'])} written now."
        )
    if headline["tokens"]:
        whose = "New" if refresh else "Their"
        tokens = f"{whose} tokens: {count(headline['tokens'])}, {_seconds(report)}"
        said.append(f"{tokens}; {_how_chosen(headline, report['speed'])}.")
    if lost := lost_rows(report["left_out"]):
        said.append(f"Left out of the catalog: {', '.join(lost)}, for reasons given below.")
    if unread := report["unread_titles"]:
        said.append(f"Read some before you use them: {unread}.")
    done = OPEN if unread else GOOD
    return Paragraph("Done", done if written == rows else BAD, said)


def lost_rows(left_out: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Rows that nobody asked to leave out of the catalog, table by table: 6 of 900 users."""
    lost = [
        (sum(one["rows"] for one in table["reasons"] if not one["is_asked"]), table)
        for table in left_out or []
    ]
    return [
        f"{count(rows)} of {count(table['of_rows'])} {table['table']}"
        for rows, table in lost
        if rows
    ]


def _how_chosen(headline: Mapping[str, Any], speed: Mapping[str, Any] | None) -> str:
    if headline["relaxed_share"]:
        return f"{percent(headline['relaxed_share'])} of them were not the model's first choice"
    if headline["rule"] == "plain":
        return "all by plain decoding"
    if headline["rule"] == "sampled":
        return "drawn at random, by a rule that keeps the model's chances"
    if headline["rule"] != "strict":
        return "none of them was relaxed"
    is_checked = speed is not None and speed["strict_unlike_plain"] == 0
    checked = f", as checked on {count(speed['rows'])} rows" if speed and is_checked else ""
    return f"by a rule that keeps plain decoding's text{checked}"


def _seconds(report: Report) -> str:
    """After a kill only the last try's time is known, and older programs do not tell of one."""
    stage = next((one for one in report["stages"] if one["stage"] == "knowledge"), None)
    if not stage or not stage["seconds"]:
        return "in a time nobody measured"
    is_whole, took = stage.get("is_whole"), duration(stage["seconds"])
    if is_whole is None:
        return f"in {took} if the run was not interrupted"
    return f"in {took}" if is_whole else f"the last part of them in {took}"


def _failed(report: Report) -> Paragraph:
    failures, headline = report["failures"], report["headline"]
    if not failures:
        return Paragraph("Failures", GOOD, ["No row failed."])
    most = failures[0]
    share = percent(ratio(headline["errors"], headline["of_rows"]))
    rows = f"{count(headline['errors'])} of {count(headline['of_rows'])} rows"
    said = [f"{rows} have no text ({share})."] if headline["errors"] else []
    if most["stage"] == "knowledge":
        said.append(f"Most often ({count(most['rows'])} rows): {most['message']}.")
    else:
        said.append(f"{count(most['rows'])} vectors stand in for a missing one: {most['message']}.")
    return Paragraph("Failures", BAD if headline["errors"] else OPEN, said)
