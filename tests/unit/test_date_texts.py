"""Dates whose year comes first are read however they are padded and parted; others are not."""

import datetime as dt

import pyarrow as pa
import pytest

from pipeline.date_texts import parsed_dates


def read(*texts):
    return parsed_dates(pa.chunked_array([pa.array(texts)])).to_pylist()


@pytest.mark.parametrize(
    "text",
    [
        "2024/1/5",
        "2024-1-5",
        "2024.1.5",
        "2024.01.05",
        "2024年1月5日",
        "2024年01月05日",
        " 2024/01/05 ",
    ],
)
def test_days(text):
    assert read(text) == [dt.datetime(2024, 1, 5)]


@pytest.mark.parametrize(
    "text",
    [
        *("2024/1/5 8:15", "2024/1/5 08:15:00", "2024-01-05 8:15", "2024-01-05T08:15"),
        *(
            "2024年1月5日 8:15",
            "2024年1月5日08:15:00",
            "2024年1月5日 8时15分",
            "2024年1月5日8点15分0秒",
        ),
    ],
)
def test_days_with_a_time(text):
    assert read(text) == [dt.datetime(2024, 1, 5, 8, 15)]


def test_forms_may_be_mixed_and_what_is_none_is_null():
    assert read("2023年12月31日", "2024/1/5", None, "2024-02-30", "2024-11-05 23:59:58") == [
        dt.datetime(2023, 12, 31),
        dt.datetime(2024, 1, 5),
        None,
        None,
        dt.datetime(2024, 11, 5, 23, 59, 58),
    ]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "5/1/2024",
            "05.01.2024",
            "1-5-24",
            "24/1/5",
            "2024/13/5",
            "2024/1/32",
            "2024/1/5 8:15 PM",
        ),
        *(
            "2024/1/5/6",
            "2024年1月",
            "2024.1",
            "民国十三年",
            "2024/1/5 25:00",
            "2024/1/5 x",
            "2024-1-512:30",
        ),
    ],
)
def test_what_does_not_say_its_day_is_not_read(text):
    assert read(text, "2024/1/5") == [None, dt.datetime(2024, 1, 5)]


def test_a_zone_counts():
    read_at = read("2024/1/5 8:15:00+08:00", "2024/1/5", "2024-01-05 00:15:00Z")
    assert [one.astimezone(dt.UTC).hour for one in read_at] == [0, 0, 0]
    assert [one.astimezone(dt.UTC).minute for one in read_at] == [15, 0, 15]
