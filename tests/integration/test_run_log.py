"""The log of a whole run, read as who is woken by it would: every line tells something, once."""

import re
from collections import Counter

import pytest

from jobs import run_all

LINE = re.compile(r"(\d\d:\d\d:\d\d) ((?:jobs|pipeline|features|retrieval_pools)[\w.]*) +(\S.*)")
LONGEST = 200
MAY_REPEAT = re.compile(r"writing the first rows|loading the language model|at work|tokens/s")


@pytest.fixture(scope="module")
def told(finished):
    """Place and message of every line of the first run."""
    lines = (finished.root / "run.log").read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if "report.html" in line)
    return read(lines[: end + 1])


def read(lines):
    found = [LINE.fullmatch(line) for line in lines]
    strange = [line for line, match in zip(lines, found, strict=True) if match is None]
    assert not strange, "lines of nobody's: warnings of libraries, or a traceback"
    return [(match[2], match[3]) for match in found]


def test_lines_are_short_and_no_dump_of_values(told):
    for place, message in told:
        assert len(f"00:00:00 {place:<24} {message}") <= LONGEST, message
        assert not re.search(r"[{}]|\bNone\b|\bnan\b|Warning|Traceback", message), message


def test_no_line_comes_twice(told):
    counts = Counter(line for line in told if not MAY_REPEAT.search(line[1]))
    assert not [line for line, count in counts.items() if count > 1]


def test_every_line_names_what_it_is_about(told):
    """A stage, a dataset or what is being started: nobody has to know the jobs."""
    about = re.compile(
        r"\[\d/\d\]|(waves/\d/)?(knowledge|pools)\b|(controls/\w+/)?features\b|done in|starting Ray"
        r"|(catalog|embeddings|groups|quality|fits|ctr|comparison|report):|KV cache|logits"
    )
    assert not [message for _, message in told if not about.match(message)]


def test_a_fresh_run_is_made_with_its_own_config_and_ends_at_its_report(told, finished):
    assert not [message for _, message in told if "another config" in message]
    assert told[-1][1] == f"report: {finished.root}/report/report.html"


def test_a_run_with_nothing_to_do_has_two_lines_a_stage_at_most(finished, config_file):
    size = len((finished.root / "run.log").read_text())
    assert run_all.main(["--config", str(config_file)]) == 0
    again = read((finished.root / "run.log").read_text()[size:].splitlines())
    news = [message for _, message in again if not re.match(r"\[\d/\d\]", message)]
    assert all("up to date" in message for message in news[:-3])
    assert news[-3] == "nothing to do: every stage is up to date"
    assert news[-1] == f"report: {finished.root}/report/report.html"
