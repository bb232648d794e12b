"""A report as `features.report.summarise` makes it, small and made up, for tests of its page."""

import copy

import pytest

_SCORES = {"auc": 0.71, "auc_sd": 0.002, "logloss": 0.6, "logloss_sd": 0.001}
_GAIN = {
    **{"auc": 0.01, "low": 0.002, "high": 0.02, "mde": 0.004, "reason": ""},
    **{"logloss": -0.001, "logloss_low": -0.002, "logloss_high": 0.0},
}
_PARTS = {"draft": 1.0, "forward": 30.0, "verify": 2.0, "bookkeeping": 0.5}


def _arm(name, kind, ratio):
    return {
        **{"arm": name, "kind": kind, "rows": 4, "seconds": 10 / ratio, "new_tokens": 400},
        **{"tokens_per_second": 40 * ratio, "tokens_per_forward": ratio, "looping_rows": 1},
        **{"rows_unlike_plain": 0, "ratio_to_plain": ratio},
    }


def _step(name, ratio):
    return {
        **{"step": name, "adds": f"what {name} adds", "ratio_to_plain": ratio},
        **{"tokens_per_second": 40 * ratio, "tokens_per_forward": ratio},
    }


def _bin(place, rate):
    return {
        **{"low": place / 10, "high": (place + 1) / 10, "expected": place / 10 + 0.05},
        **{"drafted": 100, "accepted": int(100 * rate), "rate": rate},
    }


_REPORT = {
    "run": "made-up",
    "written": "2026-01-02 03:04 UTC",
    "headline": {
        **{"entities": 12, "of_rows": 14, "errors": 2, "tokens": 1200, "relaxed_share": 0.05},
        **{"tokens_per_forward": 2.5, "rule": "relaxed", "speedup": 2.0, "refresh": None},
        **{"speedup_by_kind": {"user": 2.1, "item": 1.9}},
        "auc_gain": {"model": "din", **_GAIN, "outcome": "better", "verdict": "helps"},
        "auc_gains": [{"model": "din", **_GAIN, "outcome": "better", "verdict": "helps"}],
    },
    "stages": [
        {
            **{"stage": "knowledge", "is_done": True, "counts": {"texts": 12}},
            **{"seconds": 83.0, "facts": {"waves": 2}, "is_whole": True},
        }
    ],
    "speed": {
        **{"divergences": [], "model": "tiny", "machine": "2 threads", "rows": 8},
        **{"max_new_tokens": 50, "batch_rows": 4, "repeats": 2, "strict_unlike_plain": 0},
        **{"counts_repeats": False, "doubt": ""},
        "arms": [
            _arm(name, kind, ratio)
            for kind in ("user", "item", "all")
            for name, ratio in (("plain", 1.0), ("strict", 1.5), ("relaxed", 2.0))
        ],
    },
    "language_model": "tiny",
    "left_out": [],
    "unread_titles": "",
    "no_comparison": "",
    "no_check": "",
    "waterfall": [_step("plain", 1.0), _step("pool", 1.4), _step("tree", 1.3), _step("all", 2.0)],
    "calibration": {
        "by_rule": [
            {"rule": "strict", "bins": [_bin(1, 0.1), _bin(5, 0.5), _bin(9, 0.8)]},
            {"rule": "relaxed", "bins": [_bin(2, 0.3), _bin(7, 0.8)]},
        ]
    },
    "steps": {
        "by_wave": [
            {"wave": wave, "steps": 1000, "rows_per_step": 7.5, "seconds_by_part": _PARTS}
            for wave in (0, 1)
        ]
    },
    "acceptance": {
        "by_source": [{"source": "own", "drafted": 100, "accepted": 40, "rate": 0.4}],
        "by_depth": [
            {"depth": depth, "drafted": 100, "accepted": 60 // depth, "rate": 0.6 / depth}
            for depth in (1, 2, 3)
        ],
        "by_group": [
            {
                **{"kind": kind, "group_id": f"{kind}/collab-{number}", "rows": 10 + number},
                **{"drafted": 100, "accepted": 50, "rate": 0.5, "tokens_per_forward": 2.0},
            }
            for kind in ("user", "item")
            for number in (0, 1)
        ],
        "waves": [
            {
                **{"wave": 1, "kind": "user", "rules": ["relaxed"], "rows": 7, "tokens": 600},
                **{"tokens_per_forward": 2.5, "relaxed_share": 0.05, "cut_at_length": 1},
                "errors": 2,
            }
        ],
    },
    "groups": [
        {
            **{"kind": kind, "group_id": f"{kind}/collab-0", "route": "collaborative"},
            **{"size": 7, "distance": 0.1, "representatives": 1},
        }
        for kind in ("user", "item")
    ],
    "map": {
        "points": [
            {
                **{"kind": "user", "entity_id": f"u{n}", "title": "", "route": "collaborative"},
                **{"group_id": "user/collab-0", "x": n / 10, "y": (n % 3) / 10},
            }
            for n in range(7)
        ],
        **{"explained": [0.4, 0.3], "trained": 7, "untrained": 1},
    },
    "texts": [
        {
            **{"kind": "item", "entity_id": "i1", "title": "Heat", "prompt": "Say what it is."},
            **{"plain": "a good film", "relaxed": "a fine film", "relaxed_tokens": 1},
            **{"relaxed_cost": 0.7, "plain_is_cut": False, "relaxed_is_cut": True},
        }
    ],
    "examples": [],
    "quality": None,
    "ctr": {
        **{"protocol": "global_time", "rows": {"train": 100, "valid": 10, "test": 20}},
        **{"test_users": 5, "seeds": 3},
        "models": {
            "din": {
                "arms": {"base": _SCORES, "knowledge": _SCORES},
                **{"gain": _GAIN, "gain_over_shuffled": _GAIN, "gain_over_plain": None},
                **{"gains": {"knowledge": _GAIN}, "verdict": "helps"},
                **{"lossless": "not measured: no plain_run", "power": "yes, the canary trips"},
            }
        },
    },
    "failures": [
        {
            **{"stage": "knowledge", "kind": "user", "message": "prompt has 600 tokens"},
            **{"rows": 2, "examples": ["u0", "u1"]},
        }
    ],
    "environment": {"python": "3.11", "system": "Linux", "cores": 2, "packages": {"torch": "2"}},
    "config": {"run": "made-up", "catalog": {"source": "tables"}},
    "datasets": [
        {
            **{"dataset": "knowledge", "rows": 14, "unit": "rows", "fingerprint": "0123"},
            **{"created": "2026-01-02T03:04:05Z", "settings": {}, "inputs": {}, "facts": {}},
        }
    ],
}


@pytest.fixture
def made_up_report():
    return copy.deepcopy(_REPORT)
