"""Write members.csv, catalogue.csv and loans.csv: an invented library, as odd as tables may be.

    python tests/foreign/make.py

Headers and titles are Chinese. Members are parted by semicolons, books by tabs and with a byte
order mark, loans by commas; ids have other names in each. Every fifth book lacks its genre, five
members have borrowed nothing, a few loans are of books that the catalogue lacks, and marks run from
1 to 10.
"""

import datetime as dt
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

SEED = 20260802
MEMBERS, SILENT, BOOKS, LOANS, UNKNOWN = 60, 5, 40, 900, 6
START, DAYS = dt.datetime(2024, 1, 3, 9, 0), 300
GENRES = ("推理", "历史", "科幻", "诗歌")
WORDS = {
    "推理": ("雾港", "密室", "第七", "无声"),
    "历史": ("长河", "边城", "旧都", "盐道"),
    "科幻": ("星尘", "深空", "回声", "零度"),
    "诗歌": ("细雨", "晚风", "白露", "蓝窗"),
}
ENDINGS = ("之夜", "的来信", "档案", "旅人", "纪事", "之歌", "的花园")
CITIES = ("青河", "云溪", "北湾")
AGES = ("18-25", "26-40", "41-60", "60+")


def main(folder: Path) -> None:
    """Write the three tables."""
    random = np.random.default_rng(SEED)
    genres = random.integers(len(GENRES), size=BOOKS)
    ids = [f"T{number:05d}" for number in random.choice(90_000, BOOKS, replace=False).tolist()]
    books = []
    titles: set[str] = set()
    for book, genre in enumerate(genres.tolist()):
        title = _title(random, GENRES[genre], titles)
        titles.add(title)
        shown = "" if book % 5 == 0 else GENRES[genre]
        books.append((ids[book], title, shown, int(random.integers(1980, 2024))))
    members = [
        (f"{member + 1:06d}", CITIES[int(random.integers(3))], AGES[int(random.integers(4))])
        for member in range(MEMBERS)
    ]
    _write(folder / "members.csv", ";", ("会员号", "城市", "年龄段"), members)
    _write(
        folder / "catalogue.csv", "\t", ("图书编号", "书名", "类别", "出版年"), books, mark="\ufeff"
    )
    loans = _loans(random, genres, ids)
    _write(folder / "loans.csv", ",", ("编号", "会员", "评 分", "借阅时间"), loans)


def _title(random: np.random.Generator, genre: str, taken: set[str]) -> str:
    while True:
        word = WORDS[genre][int(random.integers(4))]
        title = word + ENDINGS[int(random.integers(len(ENDINGS)))]
        if title not in taken:
            return title


def _loans(
    random: np.random.Generator, genres: np.ndarray, ids: Sequence[str]
) -> list[tuple[str, str, int, str]]:
    """(book, member, mark, time), each book once per member, by time."""
    tastes = random.normal(0.0, 0.5, (MEMBERS, len(GENRES)))
    tastes[np.arange(MEMBERS), random.integers(len(GENRES), size=MEMBERS)] += 2.0
    pairs = random.permutation((MEMBERS - SILENT) * BOOKS)[:LOANS]
    rows = []
    for number, pair in enumerate(pairs.tolist()):
        member, book = divmod(pair, BOOKS)
        mark = 5.5 + 1.6 * tastes[member, genres[book]] + random.normal(0.0, 1.0)
        minutes = int(random.integers(DAYS * 24 * 60))
        when = (START + dt.timedelta(minutes=minutes)).strftime("%Y/%m/%d %H:%M")
        name = ids[book] if number >= UNKNOWN else f"X{number:05d}"
        rows.append((name, f"{member + 1:06d}", int(np.clip(round(mark), 1, 10)), when))
    return sorted(rows, key=lambda row: (row[3], row[1], row[0]))


def _write(
    path: Path, separator: str, header: Sequence[str], rows: Iterable[Sequence], mark: str = ""
) -> None:
    lines = [separator.join(map(str, row)) + "\n" for row in [header, *rows]]
    path.write_text(mark + "".join(lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
