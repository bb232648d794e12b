"""What a person reads while workers are busy."""

import logging
import time

from jobs import progress
from jobs.progress import Countdown, Lines, Progress, ProgressBoard, describe
from pipeline.engine.statistics import EngineStatistics


def test_reports_of_all_workers_add_up():
    board = ProgressBoard()
    board.add(1, 90, 30)
    board.add(2, 10, 20)
    assert board.read() == Progress(rows=3, tokens=100, forward_passes=50)
    board.step(EngineStatistics(tokens=150))
    board.step(EngineStatistics(tokens=20))
    assert board.read().written == 170


def test_error_rows_are_counted_in_the_line():
    board = ProgressBoard()
    board.add(2, 90, 30, 1)
    assert "1 row failed" in describe(board.read(), 100, 50, 10.0)
    assert "failed" not in describe(Progress(20, 1000, 400), 100, 50, 10.0)


def test_a_line_gives_tokens_rate_and_time_left():
    line = describe(Progress(20, 1000, 400), 100, 80, 10.0)
    assert line.startswith("20 of 100 rows, 1,000 tokens at 100 tokens/s")
    assert "2.50 tokens per forward pass" in line
    assert line.endswith("about 40 s left")


def test_rows_in_work_move_the_line_and_shorten_the_time_left():
    def of(written):
        return Progress(20, 1000, 400, engines=EngineStatistics(tokens=written))

    assert describe(of(1500), 100, 80, 10.0).startswith("20 of 100 rows, 1,500 tokens at 150")
    assert "about 23 s left" in describe(of(1500), 100, 80, 10.0)
    none_ended = Progress(engines=EngineStatistics(tokens=300))
    assert describe(none_ended, 4, 200, 10.0) == (
        "0 of 4 rows, 300 tokens at 30 tokens/s, about 17 s left if all rows are as long as allowed"
    )


def test_few_rows_do_not_tell_how_long_the_others_are():
    """The first to end are the short ones. Nor is it a bound: the pace of now may not last."""
    few = describe(Progress(9, 90, 90), 100, 100, 10.0)
    assert few.endswith("about 16 min 51 s left if all rows are as long as allowed")
    assert describe(Progress(10, 100, 100), 100, 100, 10.0).endswith("about 1 min 30 s left")


def test_no_time_is_left_once_few_rows_are_all_done():
    assert "left" not in describe(Progress(1, 5, 5), 1, 96, 10.0)
    assert "left" not in describe(Progress(0, 0, 0, engines=EngineStatistics(tokens=3)), 9, 96, 2.0)
    of_two = Progress(1, 5, 5, engines=EngineStatistics(tokens=55))
    assert "about 9.1 s left" in describe(of_two, 2, 100, 10.0)


def test_a_rate_is_never_a_bare_nought():
    assert describe(Progress(2, 0, 0, 2), 100, 50, 100.0) == "2 of 100 rows, 2 rows failed"
    assert "at 0.3 tokens/s" in describe(Progress(2, 30, 20), 100, 50, 100.0)


def test_a_phase_of_many_workers_is_announced_once_and_at_once():
    board, lines = ProgressBoard(), Lines(100, 50)
    now = time.monotonic()
    assert lines.due(board.read(), now) == []
    board.enter("loading")
    board.enter("loading")
    assert lines.due(board.read(), now) == ["loading"]
    assert lines.due(board.read(), now) == []
    board.enter("measuring")
    board.enter("loading")
    assert lines.due(board.read(), now) == ["measuring"]


def test_sums_come_every_few_seconds_and_before_the_first_token_name_the_phase():
    board, lines = ProgressBoard(), Lines(100, 50)
    now = time.monotonic()
    assert lines.due(board.read(), now + 11.0) == ["workers are starting, for 11 s so far"]
    board.enter("loading")
    assert lines.due(board.read(), now + 21.0) == ["loading"]  # which says it all
    assert lines.due(board.read(), now + 31.0) == ["loading, for 10 s so far"]
    board.step(EngineStatistics(tokens=90))
    assert lines.due(board.read(), now + 32.0) == []
    board.step(EngineStatistics(tokens=810))
    (line,) = lines.due(board.read(), now + 41.0)
    assert line.startswith("0 of 100 rows, 900 tokens at 90 tokens/s")  # of 10 s: loading is none


def test_pieces_are_counted_now_and_then_only(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    countdown = Countdown(logging.getLogger("jobs.test"), "fits", "fits", 84)
    with caplog.at_level(logging.INFO):
        for _ in range(84):
            clock[0] += 0.5
            countdown.count()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "fits: 20 of 84 fits, about 32 s left",
        "fits: 40 of 84 fits, about 22 s left",
        "fits: 60 of 84 fits, about 12 s left",
        "fits: 80 of 84 fits, about 2.0 s left",
    ]


def test_the_first_piece_tells_no_pace(monkeypatch, caplog):
    """Workers start before it, which takes longer than all the others."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    countdown = Countdown(logging.getLogger("jobs.test"), "fits", "fits", 84, done=42)
    with caplog.at_level(logging.INFO):
        for now in (20.0, 24.0, 32.0):
            clock[0] = now
            countdown.count()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["fits: 43 of 84 fits", "fits: 45 of 84 fits, about 3 min 54 s left"]


def test_what_is_done_in_a_moment_has_no_countdown(caplog):
    countdown = Countdown(logging.getLogger("jobs.test"), "features", "rows", 100)
    with caplog.at_level(logging.INFO):
        countdown.count(60)
        countdown.count(40)
    assert not caplog.records


def test_what_is_done_now_is_told_at_any_time(monkeypatch, caplog):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    countdown = Countdown(logging.getLogger("jobs.test"), "comparison", "turns", 8)
    with caplog.at_level(logging.INFO):
        countdown.tell("loading")
        for now in (30.0, 90.0):
            clock[0] = now
            countdown.add()
            clock[0] = now + 20.0
            countdown.tell("plain on users")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "comparison: 0 of 8 turns, now loading",
        "comparison: 1 of 8 turns, now plain on users",
        "comparison: 2 of 8 turns, now plain on users, about 6 min 00 s left",
    ]
