"""What a person reads while workers are busy."""

import time

from jobs.progress import Progress, ProgressBoard, describe


def test_reports_of_all_workers_add_up():
    board = ProgressBoard()
    board.add(1, 90, 30)
    board.add(2, 10, 20)
    assert board.read() == Progress(rows=3, tokens=100, forward_passes=50)


def test_a_line_gives_rate_and_time_left_once_there_is_something_to_go_by():
    began = time.monotonic() - 10.0
    line = describe(Progress(20, 1000, 400), 100, began)
    assert line.startswith("20/100 rows, 100 tokens/s")
    assert "2.50 tokens per forward pass" in line
    assert "about 40 s left" in line
    assert "left" not in describe(Progress(5, 1000, 400), 100, began)
    assert describe(Progress(), 100, began).startswith("0/100 rows")
