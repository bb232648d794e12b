"""Where a row ends: text, ids, reason and statistics are cut at the same token."""

import functools
import math

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast, StopStringCriteria
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pipeline.config import EngineSettings
from pipeline.engine.branch import Branch, take
from pipeline.engine.budget import FREE
from pipeline.engine.engine import Engine
from pipeline.engine.processors import Processors
from pipeline.engine.row import Row
from pipeline.engine.rules import Relaxed, Strict, TopKFloor
from pipeline.engine.stops import Stops
from pipeline.engine.types import DraftTree, NoDraft, Request
from pipeline.language_model import ChatTokenizer

STOP = 2
NEW = 24
SETTINGS = EngineSettings(batch_rows=4, max_length=64, prefill_tokens=24, draft_nodes=12)

BYTES = bytes_to_unicode()
SPECIAL = ("<57>", "<58>")


def spelled(text):
    return "".join(BYTES[byte] for byte in text.encode())


@functools.cache
def byte_level():
    """As many tokens as the tiny models know: letters, bytes of longer characters, some words."""
    letters = [*"abcdefghijklmnopqrstuvwxyz .,!?"]
    words = ["ab", "cd", "abc", "de", "d.", "end", "the", " the", " end", " a", "bye", "one", "two"]
    tokens = ["<zero>", "<one>", "</s>", *map(spelled, letters)]
    tokens += dict.fromkeys(BYTES[byte] for byte in "é€😀".encode())
    tokens += map(spelled, words)
    tokens += [f"<{number}>" for number in range(len(tokens), 61)]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    fast.add_special_tokens({"additional_special_tokens": list(SPECIAL)})
    return fast


def decode(ids):
    """What stop strings are looked for in."""
    return ChatTokenizer(byte_level(), "").decode_exactly(np.asarray(ids))


def ids_of(*pieces):
    """Token ids of pieces, which are text or single bytes."""
    texts = [BYTES[piece[0]] if isinstance(piece, bytes) else spelled(piece) for piece in pieces]
    ids = byte_level().convert_tokens_to_ids(texts)
    assert None not in ids
    return np.array(ids, np.int32)


def stops_at(*strings, ids=(STOP,)):
    return Stops(ids, strings, decode)


def lengths_that_end(stops, ids):
    """After how many of the tokens a row would end, were each the last."""
    return [n for n in range(1, len(ids) + 1) if stops.are_completed_by(ids[:n])]


EURO, SMILE = "€".encode(), "😀".encode()


@pytest.mark.parametrize(
    ("strings", "pieces", "ends"),
    [
        (["the end"], ["a", "the", " end"], [3]),
        (["the end"], ["t", "h", "e", " ", "e", "n", "d"], [7]),
        (["end"], ["e", "n", "d."], [3]),  # the last token says more than the string
        (["b"], ["a", "abc"], [2]),  # inside of one token
        (["e t"], ["one", " the"], [2]),
        (["end"], ["e", "n", "e", "n", "d"], [5]),
        (["."], ["d.", "d."], [1, 2]),
        (["."], ["d", "a"], []),
        (["abcd", "c"], ["ab", "cd"], [2]),
        (["xyz", "de"], ["d", "e"], [2]),
        (["é"], ["a", "é".encode()[:1], "é".encode()[1:]], [3]),
        (["€"], [EURO[:1], EURO[1:2], EURO[2:]], [3]),
        (["€ a"], [EURO[:1], EURO[1:2], EURO[2:], " a"], [4]),
        (["😀"], [SMILE[:1], SMILE[1:2], SMILE[2:3], SMILE[3:]], [4]),
        (["a€"], [EURO[:1], "a", EURO[:1], EURO[1:2], EURO[2:]], [5]),
        (["€"], [EURO[:1], EURO[1:2], "a", EURO[2:]], []),  # broken bytes
    ],
)
def test_the_token_that_completes_a_string_ends_the_row(strings, pieces, ends):
    assert lengths_that_end(stops_at(*strings), ids_of(*pieces)) == ends


@pytest.mark.parametrize(
    ("strings", "pieces", "ends"),
    [
        (["<57>"], ["a", "<57>"], [2]),
        (["ab"], ["a", "<57>", "b"], []),
        (["ab"], ["a", "<57>", "<58>", "<57>", "b"], []),
        (["a<57>"], ["a", "b", "a", "<57>"], [4]),
        (["7><58>b"], ["<57>", "<58>", "b"], [3]),
        (["<58>"], ["<57>", "b"], []),
    ],
)
def test_special_tokens_count_as_in_transformers(strings, pieces, ends):
    ids = ids_of(*pieces)
    assert set(byte_level().convert_tokens_to_ids(list(SPECIAL))) <= set(
        byte_level().all_special_ids
    )
    assert lengths_that_end(stops_at(*strings), ids) == ends
    theirs = StopStringCriteria(byte_level(), strings)
    rows = [torch.from_numpy(ids[None, :size].astype(np.int64)) for size in range(1, len(ids) + 1)]
    assert [row.shape[1] for row in rows if theirs(row, None)] == ends


def test_a_special_token_that_ends_a_row_is_in_its_ids_and_not_in_its_text(
    reference, tiny_model, oracle_drafter
):
    """The ids are those of transformers; the stored text is without special tokens as ever."""
    said = byte_level().convert_tokens_to_ids("<57>")
    prompt, plain = next(
        (prompt, ids)
        for prompt in (np.append(one, 60).astype(np.int32) for one in prompts_of(11, 60))
        if said in (ids := generated(reference, prompt))[2:-3]
    )
    options = {"stop_strings": ["<57>"], "tokenizer": byte_level()}
    expected = generated(reference, prompt, **options).tolist()
    assert expected == plain[: plain.tolist().index(said) + 1].tolist()
    for drafter in (NoDraft(), oracle_drafter({"0": plain})):
        result = decoded(tiny_model("llama"), stops_at("<57>"), [prompt], drafter)["0"]
        assert result.token_ids.tolist() == expected
        assert result.finish_reason == "stop"
        tokenizer = ChatTokenizer(byte_level(), "")
        assert tokenizer.decode(result.token_ids) == tokenizer.decode(result.token_ids[:-1])
        assert "<57>" not in tokenizer.decode(result.token_ids)


def test_a_token_is_judged_behind_the_output():
    stops = stops_at("the end")
    end, the = ids_of(" end", "the")
    assert stops.end_with(int(end), ids_of("a", "the"))
    assert not stops.end_with(int(end), ids_of("the", "a"))
    assert not stops.end_with(int(the), ids_of("a", "the"))
    assert stops.end_with(STOP, ids_of("a"))
    assert stops.end_with(STOP, ids_of("a")[:0])
    assert not Stops([STOP]).end_with(int(end), ids_of("a", "the"))


def test_white_space_that_a_tokenizer_strips_from_the_start_of_a_text_counts():
    """SentencePiece style: a text does not begin with a space, but the middle of one may."""
    vocabulary = {"\u2581": 0, "a": 1, "x": 2, "<unk>": 3}
    model = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    model.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=model, unk_token="<unk>")
    stops = Stops([], [" a"], lambda ids: tokenizer.decode(ids.tolist()))
    assert lengths_that_end(stops, np.array([2, 0, 1], np.int32)) == [3]


@pytest.mark.parametrize("strings", [[""], ["a", ""]])
def test_an_empty_stop_string_is_refused(strings):
    with pytest.raises(ValueError, match="none may be empty"):
        stops_at(*strings)


def test_stop_strings_without_a_tokenizer_are_refused():
    with pytest.raises(ValueError, match="need `decode`"):
        Stops([STOP], ["end"])


def row_of(prompt=("a",), max_new_tokens=20):
    return Row(Request("a", ids_of(*prompt), max_new_tokens), 0)


def said(row, stops, ids):
    """Append until the row ends; how many tokens it took in."""
    for count, token in enumerate(ids):
        if row.finish_reason:
            return count
        row.append(int(token), stops)
    return len(ids)


def test_a_string_completed_by_the_last_allowed_token_is_a_stop():
    row = row_of(max_new_tokens=3)
    said(row, stops_at("end"), ids_of("e", "n", "d"))
    assert row.finish_reason == "stop"
    row = row_of(max_new_tokens=2)
    said(row, stops_at("end"), ids_of("e", "n"))
    assert row.finish_reason == "length"


def test_a_stop_token_that_completes_a_string_is_a_stop_token():
    """So it is not part of the output."""
    end = int(ids_of("end")[0])
    stops = stops_at("end", ids=[end])
    row = row_of()
    assert said(row, stops, [*ids_of("a"), end]) == 2
    assert row.finish_reason == "stop"
    assert decode(row.output) == "a"


def test_the_prompt_completes_nothing():
    row = row_of(prompt=("the",))
    assert said(row, stops_at("the end"), ids_of(" end", "a")) == 2
    assert not row.finish_reason


def test_a_draft_is_cut_behind_the_token_that_completes_a_string():
    """Tokens, path, outcomes and costs: nothing behind the string is counted."""
    drafted = ids_of("a", "the", " end", "b", "c")
    size = len(drafted)
    tree = DraftTree(
        drafted,
        np.arange(-1, size - 1, dtype=np.int32),
        np.ones(size, np.float32),
        np.zeros(size, np.int8),
        np.zeros(size, np.int32),
    )
    row = row_of()
    branch = Branch(row, tree, 0, tuple(range(size)), (0.5, 0.0, 0.25, 8.0, 8.0))
    walk = take(branch, int(ids_of("x")[0]), stops_at("the end"))
    assert decode(row.output) == "athe end"
    assert row.finish_reason == "stop"
    assert walk.path == [0, 1, 2]
    assert walk.outcomes.tolist() == [1, 1, 1, -1, -1]
    assert (walk.num_tokens, walk.cost) == (3, 0.75)
    assert (row.statistics.relaxed_tokens, row.statistics.relaxed_cost) == (2, 0.75)


@pytest.fixture(scope="module")
def reference(tiny_model):
    """A model that no engine takes over."""
    return tiny_model("llama")


def prompts_of(seed, count=3):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 30, count)
    return [random.integers(3, 61, size).astype(np.int32) for size in sizes]


def generated(model, prompt, penalty=1.3, new=NEW, **options):
    """transformers' own output ids, without the stop token."""
    with torch.inference_mode():
        output = model.generate(
            torch.from_numpy(prompt.astype(np.int64))[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new,
            do_sample=False,
            repetition_penalty=penalty,
            eos_token_id=STOP,
            pad_token_id=0,
            **options,
        )[0, len(prompt) :].numpy()
    return output[: -1 if output[-1] == STOP else None]


def decoded(model, stops, prompts, drafter, rule=None, penalty=1.3, new=NEW):
    """Our own generations, by key."""
    engine = Engine(model, SETTINGS, stops, Processors(stops.ids, penalty), costs=FREE)
    engine.use(drafter, rule or Strict(), FREE)
    requests = [Request(str(number), prompt, new) for number, prompt in enumerate(prompts)]
    return {generation.key: generation for generation in engine.generate(requests)}


@pytest.mark.parametrize("seed", range(1, 8))
def test_stop_strings_are_those_of_transformers(
    reference, tiny_model, oracle_drafter, noise_drafter, seed
):
    """A piece of what the first prompt would go on with ends rows where transformers ends them.

    The prompts end with a token of no stop string, so that none can reach into one.
    """
    prompts = [np.append(prompt, 60).astype(np.int32) for prompt in prompts_of(seed, 2)]
    plain = [generated(reference, prompt) for prompt in prompts]
    text = decode(plain[0])
    length = 2 + seed % 5
    pieces = [
        piece
        for start in range(len(text) - length)
        if "\ufffd" not in (piece := text[start : start + length])
    ]
    strings = [pieces[len(pieces) // 2], "two"]
    options = {"stop_strings": strings, "tokenizer": byte_level()}
    expected = [generated(reference, prompt, **options).tolist() for prompt in prompts]
    assert strings[0] in decode(expected[0])
    truth = {str(number): ids for number, ids in enumerate(plain)}
    for drafter in (oracle_drafter(truth), noise_drafter(seed=seed)):
        results = decoded(tiny_model("llama"), stops_at(*strings), prompts, drafter)
        for number, ids in enumerate(expected):
            result = results[str(number)]
            assert result.token_ids.tolist() == ids
            ended = any(string in decode(ids) for string in strings)
            at_stop_token = len(ids) == len(plain[number]) < NEW
            assert result.finish_reason == ("stop" if ended or at_stop_token else "length")


@pytest.fixture(scope="module")
def long_row(reference):
    """A prompt that goes on to the length limit, and its continuation."""
    rows = ((prompt, generated(reference, prompt, 1.0)) for prompt in prompts_of(7, 30))
    return next((prompt, ids) for prompt, ids in rows if len(ids) == NEW)


@pytest.mark.parametrize("end", [1, 2, 5, 6, 7, 8, 13, 14, 15, 20, NEW])
def test_statistics_are_cut_where_the_text_is(long_row, tiny_model, oracle_drafter, end):
    """The oracle gives six right tokens a step, and a seventh comes from the logits."""
    prompt, ids = long_row
    # Decoding by counting makes any place a place where a string can end.
    stops = Stops([STOP], ["#" * end], lambda output: "#" * len(output))
    drafter = oracle_drafter({"0": ids})
    result = decoded(tiny_model("llama"), stops, [prompt], drafter, penalty=1.0)["0"]
    assert result.token_ids.tolist() == ids[:end].tolist()
    assert result.finish_reason == "stop"
    steps, left = divmod(end, 7)
    depths = [steps + (depth < left) for depth in range(6)]
    assert result.statistics.accepted_by_depth[:6].tolist() == depths
    assert result.statistics.accepted_by_source.sum() == sum(depths)
    assert result.statistics.forward_passes == math.ceil(end / 7)
    assert result.statistics.relaxed_tokens == result.statistics.relaxed_cost == 0


@pytest.mark.parametrize("prefer", ["probable", "longest"])
def test_relaxed_text_ends_with_the_first_stop_string(tiny_model, noise_drafter, prefer):
    stops = stops_at("e", " ", "a", "s")
    prompts = prompts_of(3, 12)
    rule = Relaxed(TopKFloor(30, 0.0), stops, prefer)
    results = decoded(tiny_model("llama"), stops, prompts, noise_drafter(), rule)
    ended = relaxed = 0
    for result in results.values():
        ends = lengths_that_end(stops, result.token_ids)
        assert ends == ([len(result.token_ids)] if ends else [])
        ended += bool(ends)
        relaxed += result.statistics.relaxed_tokens
        assert result.statistics.relaxed_tokens <= len(result.token_ids)
        assert result.statistics.relaxed_tokens <= result.statistics.accepted_by_depth.sum()
    assert ended > 4
    assert relaxed > 0


def test_rows_without_stop_strings_never_decode(tiny_model):
    def refuse(ids):
        raise AssertionError("decoded for nothing")

    decoded(tiny_model("llama"), Stops([STOP], [], refuse), prompts_of(1), NoDraft())
