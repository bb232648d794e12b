"""The summary claims what was measured, and no more."""

import re

import pytest

from features.page.render import render
from features.page.summary import BAD, GOOD, OPEN, paragraphs

NBSP = "\N{NO-BREAK SPACE}"


def told(report):
    return {
        part.topic: (part.state, " ".join(part.sentences).replace(NBSP, " "))
        for part in paragraphs(report)
    }


def test_what_was_done_and_how_long_it_took(made_up_report):
    state, words = told(made_up_report)["Done"]
    assert state == BAD  # two rows have no text
    assert words.startswith("12 of 14 users and items have a text, written by tiny.")
    assert (
        "Their tokens: 1,200, in 1 min 23 s; 5.0 % of them were not the model's first choice"
        in words
    )


def test_a_refresh_tells_what_was_kept(made_up_report):
    refresh = {"previous": "monday", "kept": 9, "written": 3}
    made_up_report["headline"]["refresh"] = refresh
    assert "9 were kept from monday, 3 written now." in told(made_up_report)["Done"][1]


@pytest.mark.parametrize(
    ("ratio", "repeats", "state", "words"),
    [
        (2.0, 3, GOOD, "2.00\N{MULTIPLICATION SIGN} as fast as plain decoding"),
        (2.0, 1, OPEN, "take it as a hint"),
        (1.01, 3, OPEN, "about as fast as plain decoding"),
        (0.8, 3, BAD, "0.80\N{MULTIPLICATION SIGN} as fast as plain decoding, slower"),
    ],
)
def test_speed_is_a_gain_only_if_it_was_measured_well(made_up_report, ratio, repeats, state, words):
    made_up_report["headline"]["speedup"] = ratio
    made_up_report["speed"]["repeats"] = repeats
    assert told(made_up_report)["Speed"][0] == state
    assert words in told(made_up_report)["Speed"][1]
    assert ("a hint" in told(made_up_report)["Speed"][1]) == (repeats == 1)


def test_speed_that_was_not_measured_says_why(made_up_report):
    made_up_report |= {"speed": None, "no_comparison": "comparison.rows_per_kind is 0"}
    state, words = told(made_up_report)["Speed"]
    assert (state, words[:46]) == (OPEN, "Not measured: comparison.rows_per_kind is 0. A")


def test_a_run_without_drafts_claims_no_speed(made_up_report):
    made_up_report["headline"] |= {"rule": "plain", "speedup": 1.0}
    words = "No row was drafted for: all texts were decoded plainly."
    assert told(made_up_report)["Speed"] == (OPEN, words)


def test_rows_that_strict_wrote_otherwise_are_told(made_up_report):
    made_up_report["speed"]["strict_unlike_plain"] = 3
    assert "in 3 rows, which it should not" in told(made_up_report)["Speed"][1]


def with_outcome(report, outcome, power="yes, the canary trips"):
    report["headline"]["auc_gains"][0]["outcome"] = outcome
    report["headline"]["auc_gain"]["outcome"] = outcome
    report["ctr"]["models"]["din"]["power"] = power
    return told(report)["CTR gain"]


def test_a_gain_is_evidence_only_over_shuffled_texts(made_up_report):
    state, words = with_outcome(made_up_report, "better")
    assert state == GOOD
    assert "That is evidence" in words
    state, words = with_outcome(made_up_report, "better, but no better than shuffled text")
    assert state == BAD
    assert words.startswith("No evidence that a CTR model gains by the texts: AUC +0.0100 [")


def test_a_check_that_cannot_see_is_not_a_bad_result(made_up_report):
    state, words = with_outcome(made_up_report, "no evidence either way", "no: AUC +0.0001")
    assert state == OPEN
    assert "The check is too small to tell" in words


def test_one_model_of_two_is_no_gain_of_all(made_up_report):
    gains = made_up_report["headline"]["auc_gains"]
    gains.append({**gains[0], "model": "dcnv2", "outcome": "no evidence either way"})
    assert told(made_up_report)["CTR gain"][0] == BAD


def test_the_price_of_speed_is_that_of_the_model_that_answers_worst(made_up_report):
    models = made_up_report["ctr"]["models"]
    models["dcnv2"] = {**models["din"], "lossless": "not lossless: AUC -0.01"}
    models["din"]["lossless"] = "lossless: AUC +0.00"
    words = told(made_up_report)["CTR gain"][1]
    assert "Does the speed cost AUC? Not lossless: AUC -0.01." in words


def test_a_gain_that_nobody_knows_says_why(made_up_report):
    made_up_report["headline"]["auc_gain"] = None
    made_up_report["headline"]["auc_gains"][0] |= {"auc": None, "reason": "one label only"}
    assert told(made_up_report)["CTR gain"] == (OPEN, "Not enough data to say: one label only.")
    made_up_report["ctr"] = None
    assert told(made_up_report)["CTR gain"][1].startswith("Not measured: make ctr")
    made_up_report["no_check"] = "without ratings no interaction is a dislike"
    assert told(made_up_report)["CTR gain"][1].startswith("Not measured: without ratings")
    assert "make ctr" not in render(made_up_report)


def test_failures_are_counted_with_their_commonest_cause(made_up_report):
    state, words = told(made_up_report)["Failures"]
    assert state == BAD
    assert words == (
        "2 of 14 rows have no text (14 %). Most often (2 rows): prompt has 600 tokens."
    )
    made_up_report["headline"]["errors"] = 0
    made_up_report["failures"][0] |= {"stage": "features", "message": "the mean of its group"}
    words = "2 vectors stand in for a missing one: the mean of its group."
    assert told(made_up_report)["Failures"] == (OPEN, words)
    made_up_report["failures"] = []
    assert told(made_up_report)["Failures"] == (GOOD, "No row failed.")


def test_charts_that_a_run_has_no_numbers_for_say_what_makes_them(made_up_report):
    page = render(made_up_report)
    assert "From plain decoding to ours" in page
    for key in ("waterfall", "calibration", "steps", "config"):
        made_up_report[key] = None
    del made_up_report["acceptance"]["by_group"]
    page = render(made_up_report)
    assert "Times of the steps were not recorded" in page
    assert "Chances of drafts were not recorded" in page
    assert "relaxation and budget each add was not measured" in page
    assert "every other <code>--set</code> that it was given" in page


def test_a_report_of_an_older_program_still_gives_a_page(made_up_report):
    for key in ("waterfall", "calibration", "steps", "config"):
        del made_up_report[key]
    assert re.search(r"</html>\s*$", render(made_up_report))
