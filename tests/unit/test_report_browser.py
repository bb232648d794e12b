"""The page in a real browser: quiet, searchable, safe, readable, and fast with 10,000 texts."""

import re
import shutil

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import expect, sync_playwright

from features.page.explorer import COLUMNS, ORIGINS, pack
from features.page.pieces import RELAXED
from features.page.render import render
from pipeline.prompts import Prompt, prompt_hash
from pipeline.schemas import ITEMS, KNOWLEDGE

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WORDS = ["A", " film", " about", " 电影", " thieves", ".", "\n", " <b>bold</b>"]
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><b>Heat</b>"
ORIGINS_SHOWN = [0, 1, 2, 3, 4, 5, 3 + RELAXED, 0]
READABLE = 4.5  # contrast, by WCAG AA
LARGEST = 9_000_000  # bytes of a page of 10,000 texts and prompts
SLOWEST_LOAD, SLOWEST_SEARCH = 5.0, 1.0  # seconds, on a busy machine


def decode(ids):
    return "".join(WORDS[token] for token in ids)


def row(number, kind, tokens=range(8), origins=ORIGINS_SHOWN, error=""):
    drafted = not error and any(origins)
    return {
        **{"kind": kind, "entity_id": f"{kind[0]}{number}", "group_id": f"{kind}/c{number % 2}"},
        **{"wave": int(drafted), "rule": "relaxed" if drafted else "plain"},
        **{"finish_reason": "error" if error else "stop", "error": error},
        **{"token_ids": [] if error else list(tokens), "text": "" if error else decode(tokens)},
        **{ORIGINS: [] if error else list(origins), "forward_passes": 0 if error else 4},
        **{"relaxed_tokens": int(RELAXED + 3 in origins), "relaxed_cost": float(number)},
    }


class Asking:
    """Stands in for `Prompts`: asks the same of all, or the lines of `large_run`."""

    def __init__(self, text="", lines=()):
        self.text, self.lines = text, lines

    def places(self, kind, entity_ids):
        return pa.array([int(name[1:]) for name in entity_ids.to_pylist()], pa.int32())

    def take(self, kind, rows):
        return [Prompt(kind, "", self.of(kind, number), 0, 0) for number in rows.tolist()]

    def of(self, kind, number):
        return self.text + "".join(self.lines[number]) if len(self.lines) else self.text


def explorer_of(rows, titles=(), prompts=None):
    schema = pa.schema([KNOWLEDGE.field(name) for name in (*COLUMNS, ORIGINS)])
    items = [{"item_id": key, "title": title, "attributes": []} for key, title in titles]
    knowledge = pa.Table.from_pylist(rows, schema=schema)
    return pack(
        lambda columns: [knowledge.select(columns)],
        pa.Table.from_pylist(items, schema=ITEMS),
        decode,
        prompts_of=None if prompts is None else lambda users, items: prompts,
    )


def small_run():
    rows = [row(n, "user") for n in range(30)]
    rows += [row(n, "item", origins=[0] * 8) for n in range(25)]
    rows[4] = row(4, "user", error="prompt has 600 tokens")
    rows[30] = row(0, "item", tokens=[0, 4, 5], origins=[0, 3, 3])
    return explorer_of(rows, [("i0", "电影 Heat"), ("i1", HOSTILE), ("i2", "Café")])


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is on PATH")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def open_page(browser, tmp_path):
    """Open a page from a file; whatever it complains of or asks of the network fails the test."""
    complaints, contexts = [], []

    def show(text, **options):
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: request.url == file.as_uri() or complaints.append(request.url),
        )
        page.goto(file.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def text_of(made_up_report):
    return lambda explorer=None: render(made_up_report, explorer or small_run())


def listed(page):
    return page.locator("#texts-list b").all_text_contents()


def search(page, words):
    """Type and wait for the answer, in ms: what a reader waits, the pause after a key included."""
    return page.evaluate(
        """words => new Promise((done, fail) => {
          setTimeout(() => fail(new Error("no answer")), 20000);
          const began = performance.now();
          new MutationObserver((_, seen) => {
            seen.disconnect();
            requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
          }).observe(document.getElementById("texts-found"), { childList: true });
          const query = document.getElementById("texts-query");
          query.value = words;
          query.dispatchEvent(new Event("input", { bubbles: true }));
        })""",
        words,
    )


def found(page):
    return page.locator("#texts-found").text_content()


def test_search_finds_titles_ids_groups_texts_and_errors(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    assert found(page) == "55 texts"
    for words, names in (
        ('"电影 heat"', ["电影 Heat"]),
        ("CAFÉ", ["Café"]),
        ("prompt has 600", ["user u4"]),
        ('"a thieves."', ["电影 Heat"]),  # in quotes: words in this order
    ):
        search(page, words)
        assert listed(page) == names
    search(page, "u7")
    assert listed(page)[0] == "user u7"  # who is called so comes before others
    search(page, "item/c1 film")
    assert found(page) == "12 of 55 texts"
    search(page, "no such words")
    assert found(page) == "0 of 55 texts"
    assert page.locator("#texts-chosen").is_hidden()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#texts-found")).to_have_text("55 texts")


def marked(page):
    """What is highlighted in the chosen text."""
    return page.evaluate(
        "[...(CSS.highlights.get('texts-found') || [])].map((range) => range.toString())"
    )


def test_a_letter_that_grows_when_made_small_moves_no_mark(open_page, text_of):
    """The small letter of the Turkish capital I with a dot takes two units."""
    text = "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}stanbul " * 5 + "and Heat"
    one = row(0, "user", tokens=[], origins=[]) | {"text": text}
    title = "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}zmir"
    page = open_page(text_of(explorer_of([one, row(1, "item")], [("i1", title)])))
    page.wait_for_selector("#texts-app:not([hidden])")
    search(page, "heat")
    assert marked(page) == ["Heat"]
    for words in ("istanbul", text[:8], "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}STANBUL"):
        search(page, words)
        assert marked(page) == [text[:8]] * 5
    search(page, "izmir")
    assert listed(page) == [title]


def test_text_runs_as_its_script_does_and_no_character_is_cut(open_page, text_of):
    hebrew = "\N{HEBREW LETTER ALEF}\N{HEBREW LETTER BET} "
    boards = "a" + "\N{CLAPPER BOARD}" * 120
    rows = [row(n, "item", tokens=[], origins=[]) for n in range(2)]
    rows = [one | {"text": text} for one, text in zip(rows, (hebrew * 9, boards), strict=True)]
    page = open_page(text_of(explorer_of(rows, [("i0", hebrew)])))
    page.wait_for_selector("#texts-app:not([hidden])")
    for selector in ("#texts-title", "#texts-body", "#texts-list b", "#texts-list .start"):
        found = page.locator(selector).first
        assert found.evaluate("one => getComputedStyle(one).direction") == "rtl", selector
    starts = page.locator("#texts-list .start").all_text_contents()
    assert starts[1] == boards[:90]
    assert page.locator("#texts .body:not([dir=auto]), #texts h3:not([dir=auto])").count() == 0


def test_filters_and_orders_narrow_what_is_found(open_page, text_of):
    page = open_page(text_of()).locator("#texts-app")
    page.get_by_label("Kind").select_option("item")
    assert found(page) == "25 of 55 texts"
    page.get_by_label("Wave").select_option("1")
    assert listed(page) == ["电影 Heat"]
    page.get_by_label("Kind").select_option("")
    page.get_by_label("Group").select_option("user/c0")
    page.get_by_label("Rule").select_option("relaxed")
    page.get_by_label("has relaxed tokens").check()
    assert found(page) == "14 of 55 texts"
    page.get_by_label("Order").select_option("cost")
    assert listed(page)[0] == "user u28"
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#texts-found")).to_have_text("55 texts")
    page.get_by_label("has an error").check()
    assert listed(page) == ["user u4"]
    assert "prompt has 600 tokens" in (page.locator("#texts-numbers").text_content() or "")


def test_groups_are_those_of_the_chosen_kind_and_no_pane_is_empty(open_page, text_of):
    page = open_page(text_of()).locator("#texts-app")
    groups = page.get_by_label("Group")

    def offered():
        return groups.locator("option").all_text_contents()

    assert offered() == ["all", "item/c0", "item/c1", "user/c0", "user/c1"]
    groups.select_option("user/c0")
    page.get_by_label("Kind").select_option("user")
    assert offered() == ["all", "user/c0", "user/c1"]
    assert (groups.input_value(), found(page)) == ("user/c0", "15 of 55 texts")
    page.get_by_label("Kind").select_option("item")
    assert offered() == ["all", "item/c0", "item/c1"]
    assert (groups.input_value(), found(page)) == ("", "25 of 55 texts")
    assert page.get_by_text("No text is like this").is_hidden()
    page.get_by_label("has an error").check()
    assert page.get_by_text("No text is like this").is_visible()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#texts-found")).to_have_text("55 texts")
    assert len(offered()) == 5
    assert page.get_by_text("No text is like this").is_hidden()


def test_one_page_of_hits_is_drawn_at_a_time(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    assert len(listed(page)) == 20
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    assert len(listed(page)) == 15
    assert page.locator("#texts-page").text_content() == "41 to 55"
    assert page.get_by_role("button", name="Next").is_disabled()
    page.get_by_role("button", name="Back").click()
    assert len(listed(page)) == 20


def test_the_keyboard_is_enough(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    page.locator("#texts-query").focus()
    for _ in range(9):  # four lists, the order, two ticks and the button, and the first hit
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#texts-title").text_content() == "user u2"
    page.keyboard.press("ArrowUp")
    assert page.locator("#texts-title").text_content() == "user u1"
    assert page.locator("#texts-list [aria-current]").text_content().startswith("user u1")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("#texts-title").text_content() == "user u2"


def colours(page, selector):
    return page.locator(selector).evaluate_all(
        "all => all.map(one => [one.textContent, getComputedStyle(one).backgroundColor,"
        " getComputedStyle(one).textDecorationLine, one.title])"
    )


def test_tokens_have_the_colours_of_their_origins_as_the_legend_says(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    tokens = colours(page, "#texts-body span")
    assert [text for text, *_ in tokens] == WORDS
    legend = {
        item.text_content().removeprefix("text").rsplit(",", 1)[0]: colour[1:3]
        for item, colour in zip(
            page.locator("#texts-legend li").all(),
            colours(page, "#texts-legend .sample"),
            strict=True,
        )
    }
    for (_, *look, title), origin in zip(tokens, ORIGINS_SHOWN, strict=True):
        assert legend[title] == look
        assert ("relaxed" in title) == (origin >= RELAXED) == (look[1] == "underline")
    assert tokens[0][3] == "the model's own choice"
    assert tokens[3][3] == "draft: pool of the group"
    tints = {tokens[place][1] for place in range(6)}
    assert len(tints) == 6  # the model's own choice and five sources are told apart
    assert tokens[0][1] == "rgba(0, 0, 0, 0)"


def test_a_text_shows_what_was_asked_or_that_it_cannot(open_page, text_of):
    question = f"Say what it is.\n{HOSTILE}, 5 stars\nNow."
    rows = [row(n, "item") for n in range(2)]
    rows[0]["prompt_hash"] = prompt_hash(question)
    page = open_page(text_of(explorer_of(rows, prompts=Asking(question))))
    page.wait_for_selector("#texts-app:not([hidden])")
    summary = page.get_by_text("What the model was asked", exact=True)
    assert page.locator("#texts-prompt").is_hidden()
    summary.click()
    assert page.locator("#texts-prompt").text_content() == question
    assert page.locator("#texts-unasked").is_hidden()
    page.locator("#texts-list button").nth(1).click()
    assert summary.is_hidden()
    assert "made again, it comes out otherwise" in page.locator("#texts-unasked").inner_text()
    page.locator("#texts-list button").nth(0).click()
    assert page.locator("#texts-prompt").is_visible()  # still open
    page = open_page(text_of(explorer_of(rows)))
    page.wait_for_selector("#texts-app:not([hidden])")
    assert page.get_by_text("the page was made without the prompts").is_visible()


def test_markup_in_the_catalog_and_in_texts_does_nothing(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    search(page, "heat onerror")
    assert page.locator("#texts-title").text_content() == f"{HOSTILE} item i1"
    assert listed(page) == [HOSTILE]
    assert page.locator("#explorer img, #explorer #texts-body b, #texts-list b b").count() == 0
    assert page.title() == "LASER knowledge report: made-up"


def test_without_scripts_the_page_says_so_and_shows_the_rest(open_page, text_of):
    page = open_page(text_of(), java_script_enabled=False)
    assert page.get_by_text("Searching the texts takes JavaScript").is_visible()
    assert page.locator("#texts-app").is_hidden()
    assert page.get_by_text("a fine film").is_visible()
    assert page.locator("svg.chart").count() >= 8
    assert page.locator("button:visible").count() == 0


def test_a_browser_that_cannot_unpack_says_so(open_page, text_of, browser):
    text = text_of().replace("<head>", "<head><script>delete window.DecompressionStream</script>")
    page = open_page(text)
    assert page.get_by_text("This browser cannot unpack the texts").is_visible()
    data = re.compile(r'(id="texts-data">)[^<]+')
    page = open_page(data.sub(r"\1AAAA", text_of()))
    page.get_by_text("The texts cannot be unpacked").wait_for()


def test_the_config_is_copied_as_it_stands(open_page, text_of):
    page = open_page(text_of())
    page.get_by_text("The whole config").click()
    page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }; 0")
    page.locator("button[data-copy=config]").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("copied") == "run: made-up\ncatalog:\n  source: tables\n"
    page.evaluate("navigator.clipboard.writeText = async () => { throw new Error(); }; 0")
    page.locator("button[data-copy=command]").click()
    page.get_by_role("button", name="Selected").wait_for()
    assert page.evaluate("getSelection().toString()").startswith("make run CONFIG=")


INK = """selector => [...document.querySelectorAll(selector)].filter(
  (one) => one.getClientRects().length).map((one) => {
  let behind = one;
  const clear = (node) => /, 0\\)$|transparent/.test(getComputedStyle(node).backgroundColor);
  while (behind.parentElement && clear(behind)) behind = behind.parentElement;
  const style = getComputedStyle(one);
  const ink = one.closest("svg") ? style.fill : style.color;
  return [selector, one.textContent.slice(0, 30), ink, getComputedStyle(behind).backgroundColor];
})"""
TEXTS = (
    *(".byline", ".summary dt", ".summary dd", ".read", ".lead", ".quiet-text", "nav a", "td"),
    *(".cards .name", ".cards .more", ".cards .number", "summary", "th", "dt", "dd", "pre"),
    *("#texts-body span", ".tokens li", ".tokens .sample", ".find label", ".found", ".hits b"),
    *(".hits span", ".pager button", "svg.chart text", ".bad", "mark", "footer p", "h2", "h3"),
)


def luminance(colour):
    channels = np.array([float(one) for one in re.findall(r"[\d.]+", colour)[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def contrast(ink, paper):
    darker, lighter = sorted((luminance(ink), luminance(paper)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_reckoned_as_the_standard_says():
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)


@pytest.mark.parametrize(
    ("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("dark", "print")]
)
def test_text_is_readable_on_what_is_behind_it(open_page, text_of, scheme, media):
    page = open_page(text_of(), color_scheme=scheme)
    page.wait_for_selector("#texts-app:not([hidden])")
    page.emulate_media(media=media)
    seen = [found for selector in TEXTS for found in page.evaluate(INK, selector)]
    assert len(seen) > 150
    faint = [one for one in seen if contrast(*one[2:]) < READABLE]
    assert faint == []
    dark = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.1
    assert dark == (scheme == "dark" and media == "screen")


def test_print_shows_the_chosen_text_and_no_controls(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    page.emulate_media(media="print")
    for selector in ("nav", ".find", ".hits", ".found", "button"):
        assert page.locator(f"{selector}:visible").count() == 0
    assert page.locator("#texts-body").is_visible()
    assert page.locator("#check svg.chart").is_visible()
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_window_does_not_scroll_sideways(open_page, text_of, width):
    page = open_page(text_of(), viewport={"width": width, "height": 800})
    page.wait_for_selector("#texts-app:not([hidden])")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_swatch_of_a_legend_stays_beside_the_first_line_of_its_words(open_page, text_of):
    page = open_page(text_of(), viewport={"width": 320, "height": 800})
    page.wait_for_selector("#texts-app:not([hidden])")
    boxes = page.evaluate(
        """() => [...document.querySelectorAll(".legend li")].map((item) => {
          const words = document.createRange();
          words.selectNodeContents(item.lastChild);
          const [swatch, line] = [item.firstElementChild, words].map(
            (one) => one.getClientRects()[0]);
          return [swatch.width, swatch.height, swatch.right, swatch.top, swatch.bottom,
            line.left, line.top, line.bottom, words.getClientRects().length];
        })"""
    )
    assert any(lines > 1 for *_, lines in boxes)  # of which the swatch is beside the first
    for width, height, right, top, bottom, left, above, below, _ in boxes:
        assert width > 10
        assert height < 25  # one word on one line
        assert right < left <= right + 8
        assert top < below
        assert bottom > above


def test_everything_that_can_be_pressed_has_a_name(open_page, text_of):
    page = open_page(text_of())
    page.wait_for_selector("#texts-app:not([hidden])")
    controls = page.locator("#explorer input, #explorer select, #explorer button, button")
    for control in controls.all():
        names = control.evaluate("one => (one.labels?.[0] ?? one).textContent.trim()")
        assert names


def large_run(rows=10_000, tokens=100):
    """Texts of made-up words, no two alike."""
    random = np.random.default_rng(0)
    WORDS.extend(f" {random.integers(36**2, 36**4):x}" for _ in range(8000))
    ids = random.integers(8, len(WORDS), (rows, tokens)).astype(np.int32)
    origins = random.choice([0, 0, 0, 2, 3, 4, 3 + RELAXED], (rows, tokens)).astype(np.int8)
    one = pa.Table.from_pylist([row(n, ("user", "item")[n % 2]) for n in range(rows)])
    ends = np.arange(rows + 1, dtype=np.int32) * tokens
    for name, values in (("token_ids", ids), (ORIGINS, origins)):
        lists = pa.ListArray.from_arrays(ends, values.ravel())
        one = one.set_column(one.schema.get_field_index(name), name, lists)
    titles = [{"item_id": f"i{n}", "title": f"Film {n}", "attributes": []} for n in range(rows)]
    films = [f"The Film of {WORDS[n]}{WORDS[n + 1]} ({n % 90 + 1930}), " for n in range(8, 3008)]
    rated = [f"{film}{stars} stars\n" for film in films for stars in (1, 2, 3, 4, 5)]
    shown = (random.random((rows, 25)) ** 2 * len(rated)).astype(int)
    asking = Asking("Say which films the viewer likes.\n", [[rated[n] for n in r] for r in shown])
    hashes = [prompt_hash(asking.of("", n)) for n in range(rows)]
    return pack(
        lambda columns: [one.append_column("prompt_hash", pa.array(hashes)).select(columns)],
        pa.Table.from_pylist(titles, schema=ITEMS),
        decode,
        prompts_of=lambda users, items: asking,
    )


def test_ten_thousand_texts_open_and_are_searched_fast(open_page, text_of):
    explorer = large_run()
    assert explorer.asked == 10_000
    text = text_of(explorer)
    assert len(text) < LARGEST
    page = open_page(text)
    page.wait_for_selector("#texts-app:not([hidden])")
    loaded = page.evaluate("performance.now()") / 1000
    assert found(page) == "10,000 texts"
    waits = [search(page, words) / 1000 for words in ("Film 9999", "a", "user/c0 f", "zzz")]
    page.get_by_label("Order").select_option("cost")
    nodes = page.evaluate("document.querySelectorAll('#explorer *').length")
    assert loaded < SLOWEST_LOAD
    assert max(waits) < SLOWEST_SEARCH
    assert nodes < 1000
