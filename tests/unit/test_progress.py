"""What a person reads while workers are busy."""

import time

from jobs.progress import Lines, Progress, ProgressBoard, describe


def test_reports_of_all_workers_add_up():
    board = ProgressBoard()
    board.add(1, 90, 30)
    board.add(2, 10, 20)
    assert board.read() == Progress(rows=3, tokens=100, forward_passes=50)


def test_error_rows_are_counted_in_the_line():
    board = ProgressBoard()
    board.add(2, 90, 30, 1)
    assert "1 errors" in describe(board.read(), 100, time.monotonic() - 10.0)
    assert "errors" not in describe(Progress(20, 1000, 400), 100, time.monotonic() - 10.0)


def test_a_line_gives_rate_and_time_left_once_there_is_something_to_go_by():
    began = time.monotonic() - 10.0
    line = describe(Progress(20, 1000, 400), 100, began)
    assert line.startswith("20/100 rows, 100 tokens/s")
    assert "2.50 tokens per forward pass" in line
    assert "about 40 s left" in line
    assert "left" not in describe(Progress(5, 1000, 400), 100, began)
    assert describe(Progress(), 100, began).startswith("0/100 rows")


def test_a_rate_is_never_a_bare_nought():
    began = time.monotonic() - 100.0
    assert describe(Progress(2, 0, 0, 2), 100, began) == "2/100 rows, 2 errors"
    assert "0.3 tokens/s" in describe(Progress(2, 30, 20), 100, began)


def test_a_phase_of_many_workers_is_announced_once_and_at_once():
    board, lines = ProgressBoard(), Lines(100)
    now = time.monotonic()
    assert lines.due(board.read(), now) == []
    board.enter("loading")
    board.enter("loading")
    assert lines.due(board.read(), now) == ["loading"]
    assert lines.due(board.read(), now) == []
    board.enter("measuring")
    board.enter("loading")
    assert lines.due(board.read(), now) == ["measuring"]


def test_sums_come_every_few_seconds_and_before_the_first_row_name_the_phase():
    board, lines = ProgressBoard(), Lines(100)
    now = time.monotonic()
    assert lines.due(board.read(), now + 11.0) == ["0/100 rows, workers are starting"]
    board.enter("loading")
    assert lines.due(board.read(), now + 12.0) == ["loading"]
    assert lines.due(board.read(), now + 22.0) == ["0/100 rows, loading"]
    board.add(3, 90, 30)
    assert lines.due(board.read(), now + 30.0) == []
    assert lines.due(board.read(), now + 33.0)[0].startswith("3/100 rows")
