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


@pytest.mark.parametrize(
    ("is_whole", "words"),
    [
        (True, "1,200, in 1 min 23 s; "),
        (False, "1,200, the last part of them in 1 min 23 s; "),
        (None, "1,200, in 1 min 23 s if the run was not interrupted; "),
    ],
)
def test_the_time_of_a_run_that_was_killed_is_that_of_its_last_part(
    made_up_report, is_whole, words
):
    made_up_report["stages"][0]["is_whole"] = is_whole
    assert words in told(made_up_report)["Done"][1]
    assert ("the last part of it: 1 min 23 s" in render(made_up_report)) == (is_whole is False)
    assert ("does not say whether it was" in render(made_up_report)) == (is_whole is None)


@pytest.mark.parametrize(
    ("rule", "share", "unlike", "words"),
    [
        ("plain", 0.0, 0, "all by plain decoding."),
        (
            "strict", 0.0, 0,
            "by a rule that keeps plain decoding's text, as checked on 8 rows.",
        ),
        ("strict", 0.0, 3, "by a rule that keeps plain decoding's text."),
        ("strict", 0.0, None, "by a rule that keeps plain decoding's text."),
        ("sampled", 0.0, 0, "drawn at random, by a rule that keeps the model's chances."),
        ("relaxed", 0.0, 0, "none of them was relaxed."),
        ("relaxed", 0.0004, 0, "under 0.1 % of them were not the model's first choice."),
    ],
)  # fmt: skip
def test_what_was_not_checked_is_not_claimed_of_the_texts(
    made_up_report, rule, share, unlike, words
):
    made_up_report["headline"] |= {"rule": rule, "relaxed_share": share}
    made_up_report["speed"]["strict_unlike_plain"] = unlike
    assert told(made_up_report)["Done"][1].endswith(f"; {words}")
    made_up_report["speed"] = None
    assert "checked" not in told(made_up_report)["Done"][1]


def test_sampled_texts_have_no_speed_and_no_step(made_up_report):
    made_up_report["headline"] |= {"rule": "sampled", "speedup": None, "speedup_by_kind": {}}
    state, words = told(made_up_report)["Speed"]
    assert (state, words[:57]) == (
        OPEN,
        "Not measured: sampled decoding is no arm of the compariso",
    )
    page = render(made_up_report)
    assert "The texts of this run were sampled, which no step measures" in page
    assert '<div class="more">sampled decoding is no arm of the comparison</div>' in page


def test_a_refresh_tells_what_was_kept(made_up_report):
    refresh = {"previous": "monday", "kept": 9, "written": 3}
    made_up_report["headline"]["refresh"] = refresh
    assert "9 were kept from monday, 3 written now." in told(made_up_report)["Done"][1]


@pytest.mark.parametrize(
    ("ratio", "repeats", "state", "words"),
    [
        (2.0, 3, GOOD, "2.00\N{MULTIPLICATION SIGN} as fast as plain decoding"),
        (2.0, 1, OPEN, "take it as a hint"),
        (0.5, 1, OPEN, "take it as a hint"),
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
    tile = tile_of(render(made_up_report), "Speed-up")
    assert ("a hint only, every arm ran once" in tile) == (repeats == 1)
    assert ("number quiet-text" in tile) == (state == OPEN)


def test_a_speed_that_cannot_be_is_not_shown_as_one(made_up_report):
    doubt = "Relaxed decoding came out 9.00x as fast: the machine was busy."
    made_up_report["speed"]["doubt"] = doubt
    made_up_report["headline"] |= {"speedup": None, "speedup_by_kind": {}}
    state, words = told(made_up_report)["Speed"]
    assert state == OPEN
    assert words == (
        f"This measurement of speed is not usable. {doubt} What holds: a forward pass of the model "
        "wrote 2.50 tokens a row (plain: 1)."
    )
    page = render(made_up_report)
    assert '<div class="number quiet-text">n/a</div>' in tile_of(page, "Speed-up")
    assert doubt in tile_of(page, "Speed-up")
    section = page[page.index('<section id="speed">') : page.index('<section id="acceptance">')]
    assert section.count(doubt) == 2  # above all of it, and over the waterfall
    assert not re.search(r'class="(gain|loss|c\d)" x=', section.partition("Time per step")[0])
    assert "Longer bars are faster" not in section  # they are grey
    assert "strict wrote the same tokens as plain decoding in every row" in section
    made_up_report["speed"]["doubt"] = ""
    assert "Longer bars are faster" in render(made_up_report)


def test_words_of_the_project_are_explained_where_the_page_begins(made_up_report):
    made_up_report["ctr"]["framework"] = "kar"
    page = render(made_up_report)
    top = page[page.index("<header>") : page.index("</header>")]
    assert "tokens guessed from earlier texts" in top
    assert "The rule is relaxed: near-misses are accepted, so texts differ slightly." in top
    assert "5.0 % of them relaxed (near-misses that were accepted)" in top
    assert "relaxed (accepts near-misses) against plain decoding" in top
    assert "in the CTR model din; framework kar (the way the model was asked)" in top
    assert "decoded strictly (as plain decoding would write them)" in top
    assert "A pool is the earlier texts" in page
    made_up_report["headline"]["rule"] = "strict"
    assert "only what plain decoding would write is accepted." in told(made_up_report)["Speed"][1]


def test_a_model_that_cannot_read_the_titles_is_no_success(made_up_report):
    made_up_report["headline"]["entities"] = made_up_report["headline"]["of_rows"]
    assert told(made_up_report)["Done"][0] == GOOD
    made_up_report["unread_titles"] = "titles are in letters that the model hardly reads"
    state, words = told(made_up_report)["Done"]
    assert state == OPEN
    assert "Read some before you use them: titles are in letters" in words


def test_rows_left_out_of_the_catalog_are_told_with_their_reasons(made_up_report):
    assert "eft out of the catalog" not in render(made_up_report)
    reasons = [{"rows": 4, "reason": "lack a rating"}, {"rows": 2, "reason": "lack a time"}]
    reasons = [one | {"is_asked": False} for one in reasons]
    lost = {"table": "interactions", "rows": 6, "of_rows": 900, "reasons": reasons}
    made_up_report["left_out"] = [lost]
    words = "Left out of the catalog: 6 of 900 interactions, for reasons given below."
    assert words in told(made_up_report)["Done"][1]
    page = render(made_up_report)
    assert "<td>900</td><td>6</td>" in page
    assert "lack a rating (4); lack a time (2)</td>" in page
    reasons[0]["is_asked"] = True
    assert "Left out of the catalog: 2 of 900 interactions" in told(made_up_report)["Done"][1]
    made_up_report["left_out"] = None
    assert "how many was not recorded when it was made" in render(made_up_report)


def test_an_older_report_is_doubted_as_well(made_up_report):
    del made_up_report["speed"]["doubt"]
    assert "not usable" not in render(made_up_report)
    made_up_report["speed"]["arms"][2]["ratio_to_plain"] = 2.6
    page = render(made_up_report)
    assert "Relaxed decoding of users came out 2.60" in tile_of(page, "Speed-up")
    assert "n/a" in tile_of(page, "Speed-up")


def test_the_byline_names_the_model_without_a_comparison(made_up_report):
    made_up_report |= {"speed": None}
    del made_up_report["language_model"]
    assert "language model" not in render(made_up_report).partition("</p>")[0]
    wave = {**made_up_report["datasets"][0], "dataset": "waves/0/knowledge"}
    made_up_report["datasets"].append(wave | {"settings": {"model": "8aaf72"}})
    assert ", language model 8aaf72</p>" in render(made_up_report)
    made_up_report["config"]["language_model"] = {"path": ".cache/models/smol/"}
    assert ", language model smol</p>" in render(made_up_report)
    assert "have a text, written by smol." in render(made_up_report)


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
    page = render(made_up_report)
    assert "did not in 3 rows, and" in page
    assert "those of all 2 repeats. A row is counted once" in page
    made_up_report["speed"]["counts_repeats"] = True
    words = "in 3 rows, each of 2 repeats counted, which it should not"
    assert words in told(made_up_report)["Speed"][1]
    page = render(made_up_report)
    assert "did not in 3 rows (each of the 2 repeats counted), and" in page
    assert "those of all 2 repeats. Rows are counted in each of them." in page


def test_a_comparison_of_several_tries_says_so(made_up_report):
    assert "all arms in one process" in render(made_up_report)
    made_up_report["speed"]["tries"] = 2
    assert "all arms of a round in one process, in 2 tries" in render(made_up_report)


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
    verdict = (
        "No gain by what the texts say: the CTR model din is no better than with shuffled ones. "
        "AUC +0.0100 ["
    )
    assert words.startswith(verdict)


def test_a_check_that_cannot_see_is_not_a_bad_result(made_up_report):
    state, words = with_outcome(made_up_report, "no evidence either way", "no: AUC +0.0001")
    assert state == OPEN
    assert words.startswith("No gain seen; too few test users (5) to tell. AUC +0.0100 [")


@pytest.mark.parametrize(
    ("outcome", "power", "verdict"),
    [
        ("better", "yes", "The CTR models gain by the texts"),
        ("worse", "yes", "No gain: the CTR model din is worse with the texts"),
        (
            "worse, but no worse than shuffled text", "yes",
            "No gain: the CTR model din is worse with the texts, but no worse than with shuffled "
            "ones",
        ),
        ("no evidence either way", "yes", "No gain seen in the CTR model din"),
        (
            "worse, but no worse than shuffled text", "no: AUC +0.0",
            "No gain seen; too few test users (5) to tell",
        ),
    ],
)  # fmt: skip
def test_tile_and_sentence_say_the_same_of_the_gain(made_up_report, outcome, power, verdict):
    _, words = with_outcome(made_up_report, outcome, power)
    assert words.startswith(f"{verdict}. AUC ")
    tile = tile_of(render(made_up_report), "AUC gain")
    assert f"<b>{verdict}</b>: [" in tile
    assert ("number quiet-text" in tile) == power.startswith("no")


def tile_of(page, name):
    found = re.search(rf'<li><div class="name">{name}</div>.*?</li>', page, re.DOTALL)
    assert found is not None
    return found[0]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("strict", "this run's rule (strict) is to keep plain decoding's text"),
        (
            "relaxed",
            "<code>laser run ... --set generation.rule=strict --set 'run=two films-strict'</code> "
            "makes such a run, and then "
            "<code>laser check ... --set 'plain_run=two films-strict'</code>",
        ),
    ],
)
def test_a_price_that_was_not_measured_says_what_measures_it(made_up_report, rule, words):
    made_up_report |= {"run": "two films"}
    made_up_report["headline"]["rule"] = rule
    page = render(made_up_report).replace("&#39;", "'")
    assert page.count(words) == 2  # in the summary and beside the chart of the check


def test_one_model_of_two_is_no_gain_of_all(made_up_report):
    gains = made_up_report["headline"]["auc_gains"]
    gains.append({**gains[0], "model": "dcnv2", "outcome": "no evidence either way"})
    assert told(made_up_report)["CTR gain"][0] == BAD


def test_the_price_of_speed_is_that_of_the_model_that_answers_worst(made_up_report):
    models = made_up_report["ctr"]["models"]
    models["dcnv2"] = {**models["din"], "lossless": "not lossless: AUC -0.01"}
    models["din"]["lossless"] = "lossless: AUC +0.00"
    words = told(made_up_report)["CTR gain"][1]
    assert "Is acceleration lossless in AUC? Not lossless: AUC -0.01." in words


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
    assert "tree, budget and relaxation each bring was not measured" in page
    assert "every other <code>--set</code> that it was given" in page


def of_the_first_program(report):
    """As reports were before refreshes, the quality of texts and the second verdict."""
    later = (
        "left_out",
        "unread_titles",
        "waterfall",
        "calibration",
        "steps",
        "config",
        "quality",
        "examples",
    )
    for key in (*later, "no_comparison", "no_check"):
        del report[key]
    for key in ("refresh", "relaxed_share"):
        del report["headline"][key]
    for key in ("divergences", "repeats", "strict_unlike_plain", "counts_repeats", "machine"):
        del report["speed"][key]
    for arm in report["speed"]["arms"]:
        del arm["rows_unlike_plain"]
    for gain in (report["headline"]["auc_gain"], *report["headline"]["auc_gains"]):
        del gain["outcome"], gain["reason"]
    model = report["ctr"]["models"]["din"]
    for key in ("gains", "gain_over_plain", "lossless", "power"):
        del model[key]
    del model["gain"]["reason"], report["stages"][0]["is_whole"], report["datasets"][0]["unit"]
    del report["texts"][0]["plain_is_cut"], report["acceptance"]["by_group"]
    return report


def test_a_report_of_the_first_program_still_gives_a_page(made_up_report):
    page = render(of_the_first_program(made_up_report))
    assert re.search(r"</html>\s*$", page)
    assert (
        "Is acceleration lossless in AUC? Not measured: the program of that time did not." in page
    )
    assert "1,200, in 1 min 23 s if the run was not interrupted".replace(" s ", f"{NBSP}s ") in (
        page.replace(f"1{NBSP}min", "1 min")
    )
    assert "Quality was not measured" in page
    assert "how many was not recorded when it was made" in page
    assert "strict should write what plain decoding does, which was not counted" in page


def test_a_check_without_models_gives_a_page(made_up_report):
    made_up_report["ctr"] |= {"models": {}, "slices": {}}
    made_up_report["headline"] |= {"auc_gain": None, "auc_gains": []}
    assert "Not enough data to say: no AUC is known." in render(made_up_report)


def test_the_page_neither_sends_anything_nor_moves_its_links(made_up_report):
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', render(made_up_report))
    assert policy is not None
    assert {"default-src 'none'", "base-uri 'none'", "form-action 'none'"} <= set(
        policy[1].split("; ")
    )


def test_the_config_of_a_page_is_called_the_runs_only_as_far_as_the_datasets_say(made_up_report):
    made_up_report["config_differences"] = None
    assert "whether the datasets were made with it was not looked at" in render(made_up_report)
    made_up_report["config_differences"] = []
    assert "Every setting that the datasets have kept is the same in it" in render(made_up_report)
    rule = {"setting": "generation.rule", "made_with": "strict", "config": "relaxed"}
    made_up_report["config_differences"] = [rule | {"datasets": "waves/1/knowledge"}]
    page = render(made_up_report)
    assert "not the one of the run" in page
    assert "<code>generation.rule</code>" in page
    assert "is the same in it" not in page
