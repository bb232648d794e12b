"""Write readers.csv, books.csv and ratings.csv: an invented bookshop, the same every time.

    python tests/bookshop/make.py

Readers have one or two favourite genres and like some authors, books are good or less so, ratings
follow taste and noise over two years. Six readers have not rated anything yet, three books have no
genre, some titles are not ASCII.
"""

import csv
import datetime as dt
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

SEED = 20260801
READERS, SILENT, BOOKS, RATINGS = 120, 6, 80, 2400
FIRST_DAY, DAYS = dt.date(2023, 1, 2), 730
GENRES = ("Crime", "Fantasy", "History", "Poetry", "Romance", "Science", "Travel")
PLACES = {
    "Crime": ("the Locksmith", "Pier Nine", "Room 12", "the Magistrate", "Cold Alley", "the Alibi"),
    "Fantasy": ("the Moss King", "Ember Vale", "the Ninth Gate", "Owlhollow", "the Glass Wyrm"),
    "History": ("the Salt Road", "a Weaver Town", "the Tin Fleet", "the Last Mill", "Old Harrow"),
    "Poetry": ("Small Rain", "the Unlit Window", "Salt and Linen", "Slow Rivers", "Blue Hours"),
    "Romance": ("Lindenhof", "the Orchard", "Second Summer", "the Ferry Girl", "Late Letters"),
    "Science": ("the Quiet Atom", "Deep Ice", "the Clever Root", "Nine Moons", "the Warm Brain"),
    "Travel": ("the Slow Train", "Far Ridge", "Dust and Figs", "Three Harbours", "the Long Steppe"),
}
OPENINGS = ("The Book of", "A Night in", "Letters from", "Beyond", "The Keeper of", "Return to")
ACCENTED = {
    5: ("Kafé Övergård", "Swedish"),
    17: ("L'été à Brénac", "French"),
    29: ("Łódka we mgle", "Polish"),
    41: ("El pájaro de añil", "Spanish"),
    53: ("Die Brücke über dem Fluß", "German"),
    68: ("夜の灯台守", "Japanese"),
}
FORENAMES = ("Mira", "Tobin", "Esra", "Jonas", "Ilka", "Petra", "Anselm", "Noor", "Viggo", "Runa")
SURNAMES = ("Haldane", "Vesper", "Quill", "Marlow-Finch", "Ostrava", "Brandt", "Selwyn", "Ürek")
TOWNS = ("Hillbrook", "Marsh End", "Port Alder", "Stonebridge")
JOBS = ("baker", "clerk", "gardener", "nurse", "pensioner", "student", "teacher")
STARS = (2.0, 2.75, 3.4, 4.1)  # where a taste becomes one more star
NO_GENRE = (11, 37, 62)


def main(folder: Path) -> None:
    """Write the three tables."""
    random = np.random.default_rng(SEED)
    books, genres, quality = _books(random)
    readers, tastes = _readers(random)
    _write(
        folder / "books.csv",
        ("isbn", "name", "author", "genre", "year", "pages", "language"),
        books,
    )
    _write(folder / "readers.csv", ("card", "town", "job", "born"), readers)
    ratings = _ratings(random, tastes, genres, quality)
    rows = [
        (readers[reader][0], books[book][0], stars, day.isoformat())
        for reader, book, stars, day in ratings
    ]
    _write(folder / "ratings.csv", ("card", "isbn", "stars", "day"), rows)


def _books(random: np.random.Generator) -> tuple[list[tuple], np.ndarray, np.ndarray]:
    """Rows, and of each book the number of its genre and how good it is."""
    genres = np.sort(random.integers(len(GENRES), size=BOOKS))
    random.shuffle(genres)
    authors = [f"{first} {last}" for first in FORENAMES for last in SURNAMES]
    random.shuffle(authors)
    rows, titles = [], set()
    for book, genre in enumerate(genres.tolist()):
        made = _title(random, GENRES[genre], titles)
        title, language = ACCENTED.get(book, (made, "English"))
        titles.add(title)
        author = authors[genre * 4 + int(random.integers(4))]  # who writes in one genre
        name = "" if book in NO_GENRE else GENRES[genre]
        year, pages = int(random.integers(1961, 2024)), int(random.integers(9, 62)) * 10
        isbn = f"979-0-{random.integers(10_000_000):07d}-{book % 10}"
        rows.append((isbn, title, author, name, year, pages, language))
    return rows, genres, random.normal(0.0, 0.45, BOOKS)


def _title(random: np.random.Generator, genre: str, taken: set[str]) -> str:
    while True:
        opening = OPENINGS[int(random.integers(len(OPENINGS)))]
        title = f"{opening} {PLACES[genre][int(random.integers(len(PLACES[genre])))]}"
        if title not in taken:
            return title


def _readers(random: np.random.Generator) -> tuple[list[tuple], np.ndarray]:
    """Rows, and what each reader makes of each genre: (readers, genres)."""
    rows, tastes = [], random.normal(-0.35, 0.3, (READERS, len(GENRES)))
    for reader in range(READERS):
        job = int(random.integers(len(JOBS)))
        count = 1 + int(random.integers(2))
        weights = np.ones(len(GENRES))
        weights[job] = 3.0  # a job says a little about taste
        favourites = random.choice(len(GENRES), count, replace=False, p=weights / weights.sum())
        tastes[reader, favourites] += 1.7
        town = TOWNS[int(random.integers(len(TOWNS)))]
        rows.append(
            (f"{reader * 37 % 1000:04d}", town, JOBS[job], int(random.integers(1940, 2009)))
        )
    return rows, tastes


def _ratings(
    random: np.random.Generator, tastes: np.ndarray, genres: np.ndarray, quality: np.ndarray
) -> list[tuple[int, int, int, dt.date]]:
    """(reader, book, stars, day), each book once per reader, by day."""
    busy = random.lognormal(0.0, 0.6, READERS)
    busy[random.choice(READERS, SILENT, replace=False)] = 0.0
    joined = np.where(random.random(READERS) < 0.8, 0, random.integers(DAYS // 2, size=READERS))
    popular = random.lognormal(0.0, 0.7, BOOKS)
    taken: set[tuple[int, int]] = set()
    rows = []
    while len(rows) < RATINGS:
        reader = int(random.choice(READERS, p=busy / busy.sum()))
        # Readers pick what they like more often than not, so stars are many.
        pull = popular * np.exp(0.8 * tastes[reader, genres])
        book = int(random.choice(BOOKS, p=pull / pull.sum()))
        if (reader, book) in taken:
            continue
        taken.add((reader, book))
        day = FIRST_DAY + dt.timedelta(days=int(random.integers(joined[reader], DAYS)))
        joy = 3.1 + tastes[reader, genres[book]] + quality[book] + random.normal(0.0, 0.55)
        rows.append((reader, book, 1 + int(np.searchsorted(STARS, joy)), day))
    return sorted(rows, key=lambda row: (row[3], row[0], row[1]))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
