"""The figures of decoding: bars that end where the numbers say, and words for who hovers."""

import re

import pytest

from features import draft_figures, svg
from features.page.render import render

HOSTILE = '</svg><script>alert("1")</script>'


def rects(drawing, tone):
    found = re.findall(rf'<rect class="{tone}" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawing)
    return [(float(x), float(width)) for x, width in found]


def test_each_step_of_the_waterfall_goes_on_where_the_last_one_ended(made_up_report):
    drawing = str(draft_figures.waterfall(made_up_report["waterfall"]))
    [(left, plain)] = rects(drawing, "quiet")
    (pool, first), (every, second) = rects(drawing, "gain")
    [(tree, loss)] = rects(drawing, "loss")
    assert pool == pytest.approx(left + plain, abs=0.2)
    assert first == pytest.approx(0.4 * plain, abs=0.2)
    assert tree == pytest.approx(left + 1.3 * plain, abs=0.2)
    assert loss == pytest.approx(0.1 * plain, abs=0.2)
    assert every == pytest.approx(tree, abs=0.2)
    assert second == pytest.approx(0.7 * plain, abs=0.2)
    assert "pool: what pool adds; 56.0 tokens per second" in drawing


def test_parts_of_a_step_stand_beside_each_other_in_milliseconds(made_up_report):
    drawing = str(draft_figures.step_times(made_up_report["steps"]["by_wave"]))
    [draft, *_], [forward, *_] = rects(drawing, "c1"), rects(drawing, "c0")
    assert forward[0] == pytest.approx(draft[0] + draft[1], abs=0.02)
    assert forward[1] == pytest.approx(30 * draft[1], rel=0.01)
    assert "33.5 ms</text>" in drawing
    assert "wave 0, 1,000 steps of 7.5 rows: draft 1.0 ms, forward 30.0 ms" in drawing


def test_a_wave_without_steps_has_an_empty_bar(made_up_report):
    waves = [made_up_report["steps"]["by_wave"][0] | {"steps": 0}]
    assert "0.0 ms</text>" in str(draft_figures.step_times(waves))


def test_dots_lie_on_the_diagonal_where_drafts_keep_their_promise(made_up_report):
    rules = made_up_report["calibration"]["by_rule"]
    rules[0]["bins"] = [
        {"low": 0.5, "high": 0.6, "expected": 0.5, "rate": 0.5, "drafted": 4, "accepted": 2},
        {"low": 0.9, "high": 1.0, "expected": 1.0, "rate": 0.75, "drafted": 1, "accepted": 0},
        {"low": 0.0, "high": 0.1, "expected": None, "rate": None, "drafted": 0, "accepted": 0},
    ]
    drawing = str(draft_figures.calibration(rules[:1]))
    dots = re.findall(r'<circle class="c1" cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', drawing)
    [(x, y, large), (right, lower, small)] = [tuple(map(float, dot)) for dot in dots]
    assert (x, y) == (198.0, 176.0)  # the middle of the square
    assert (right, lower) == (348.0, 101.0)
    assert large - 3 == pytest.approx(2 * (small - 3), abs=0.11)  # four times the area, less a rim
    assert "2 of 4 stayed (50 %), 50 % were expected to" in drawing


def test_groups_of_most_rows_come_first_and_the_rest_is_counted(made_up_report):
    groups = [
        {
            **{"kind": "user", "group_id": f"user/collab-{n}", "rows": n, "drafted": 10},
            **{"accepted": 5, "rate": 0.5 if n else None, "tokens_per_forward": None},
        }
        for n in range(33)
    ]
    drawing = str(draft_figures.acceptance_by_group(groups, "user"))
    assert drawing.index("collab-32") < drawing.index("collab-31")
    assert draft_figures.hidden_groups(groups, "user") == 3
    assert draft_figures.hidden_groups(groups, "item") == 0
    assert draft_figures.hidden_groups([*groups, groups[0] | {"drafted": 0}], "user") == 3
    made_up_report["acceptance"]["by_group"] = groups
    assert "3 smaller groups are not drawn" in render(made_up_report)


def test_names_in_the_data_stay_text(made_up_report):
    made_up_report["waterfall"][1] |= {"step": HOSTILE, "adds": HOSTILE}
    made_up_report["calibration"]["by_rule"][0]["rule"] = HOSTILE
    made_up_report["acceptance"]["by_group"][0]["group_id"] = HOSTILE
    made_up_report["failures"][0]["message"] = HOSTILE
    assert HOSTILE not in render(made_up_report)


def test_letters_that_take_two_columns_are_reckoned_so():
    label = "城市=云溪,年龄段=18-25"
    assert svg.label_width([label]) > svg.label_width(["x" * len(label)])
    long = "图" * 30
    shown = re.findall(r">([^<]*)<", svg.row_label(long, 0))[0]
    assert shown == "图" * 10 + "…"
    assert re.findall(r">([^<]*)<", svg.row_label("x" * 30, 0))[0] == "x" * 21 + "…"
