"""Text out of the gradients of rotary models, encoders and classifiers: whole and certified, or no
claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import unsum
from separate.text_families import VOCABULARY, WIDTH, PeftModel, adapted, made, trained
from unsum.errors import UnsumError
from unsum.models.language import TextTask, embedding_of, looks_ahead, task_of
from unsum.separate.text.judge import doubt_displaced, doubt_unheld
from unsum.separate.text.recovered import Text, labeled
from unsum.separate.text.replay import name_of, play

OPENS, CLOSES, MASK = 2, 3, 4


def sentences(sequences: int, length: int, seed: int = 1, *, framed: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, VOCABULARY, (sequences, length), generator=generator)
    if framed:
        tokens[:, 0], tokens[:, -1] = OPENS, CLOSES
    return tokens


def shortened(
    tokens: Tensor, lengths: list[int], padding: int
) -> tuple[Tensor, Tensor, list[list[int]]]:
    """As a tokenizer pads: tokens, mask, and what the sequences are."""
    mask = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    for row, length in enumerate(lengths):
        tokens[row, length - 1] = CLOSES
    tokens = tokens.where(mask, padding)
    return (
        tokens,
        mask,
        [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)],
    )


def padded_on_the_left(
    tokens: Tensor, lengths: list[int]
) -> tuple[Tensor, Tensor, list[list[int]]]:
    mask = torch.arange(tokens.shape[1]) >= tokens.shape[1] - torch.tensor(lengths)[:, None]
    return (
        tokens.where(mask, 0),
        mask,
        [row[-length:].tolist() for row, length in zip(tokens, lengths, strict=True)],
    )


def assert_read(leak: unsum.Leak, truth: list[list[int]]) -> None:
    assert leak.exact, leak.notes
    assert leak.tokens is not None
    assert sorted(leak.tokens) == sorted(truth)
    assert leak.residual < 1e-5


@pytest.mark.parametrize(
    ("kind", "tied"), [("llama", False), ("llama", True), ("neox", False), ("opt", True)]
)
def test_decoders_with_other_positions_and_norms(kind: str, tied: bool) -> None:
    model, tokens = made(kind, tied=tied), sentences(4, 9)
    leak = unsum.attack(model, unsum.capture_text(model, tokens, train=False))
    assert leak.method == "text"
    assert_read(leak, tokens.tolist())


def test_a_briefly_trained_rotary_model() -> None:
    tokens = sentences(4, 9)
    model = trained(made("llama"), sentences(16, 9, seed=5), sentences(16, 9, seed=5), 20)
    assert_read(
        unsum.separate(model, unsum.capture_text(model, tokens, train=False), "text"),
        tokens.tolist(),
    )


def test_a_first_token_twice_is_read_once_or_not_claimed() -> None:
    """Rotary positions: two equal first tokens read exactly alike, so the gradient may not tell how
    many there were."""
    model, tokens = made("llama"), sentences(2, 6)
    assert unsum.separate(model, unsum.capture_text(model, tokens, train=False), "text").exact
    tokens[0, 1] = tokens[0, 0]
    leak = unsum.separate(model, unsum.capture_text(model, tokens, train=False), "text")
    assert not leak.exact or sorted(leak.tokens or []) == sorted(tokens.tolist())


def test_a_first_token_that_alone_is_read_may_stand_there_several_times() -> None:
    """Bred by the search for false claims: [a, a, b] of which b alone counts reads as [a, b] does,
    and was claimed to be that."""
    model, tokens = made("llama"), torch.tensor([[17, 17, 39], [14, 31, 30]])
    labels = torch.tensor([[-100, -100, 39], [-100, 31, 30]])
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, labels, train=False), "text", batch_size=3
    )
    assert sorted(leak.tokens or []) == [[14, 31, 30], [17, 39]]
    assert not leak.exact
    assert leak.notes[0].startswith(
        "Sequence 0 reads the same however often its first token stands there"
    )


def test_a_masked_token_that_the_model_is_sure_of_is_not_claimed_to_be_the_mask() -> None:
    """Bred by the search for false claims: nothing is sent of such a token, and the mask was
    claimed to be the text."""
    model, tokens = made("bert"), sentences(2, 6, framed=True)
    head = next(
        module
        for module in model.modules()
        if isinstance(module, nn.Linear) and len(module.weight) == VOCABULARY
    )
    with torch.no_grad():
        head.bias[9] = 40.0  # whatever stands behind a mask, the model says 9
    tokens[0, 1] = 9
    masked, labels = tokens.clone(), torch.full_like(tokens, -100)
    for row, place in ((0, 1), (0, 3), (1, 2)):
        masked[row, place], labels[row, place] = MASK, tokens[row, place]
    leak = unsum.separate(model, unsum.capture_text(model, masked, labels, train=False), "text")
    assert any(MASK in row for row in leak.tokens or [])
    assert not leak.exact
    assert any("masked token that sends too little" in note for note in leak.notes)


def two_masks() -> tuple[nn.Module, unsum.Update, Text]:
    """A text with a masked token at places 1 and 3, and its update."""
    model, tokens = made("bert"), sentences(1, 6, framed=True)
    masked, labels = tokens.clone(), torch.full_like(tokens, -100)
    for place in (1, 3):
        masked[0, place], labels[0, place] = MASK, tokens[0, place]
    update = unsum.capture_text(model, masked, labels, train=False)
    return model, update, Text(masked.tolist(), labels.tolist())


@pytest.mark.parametrize(("share", "doubted"), [(1.0, False), (1e-6, True)])
def test_a_masked_token_that_sends_little_may_stand_in_another_text(
    share: float, doubted: bool
) -> None:
    model, update, text = two_masks()
    played = play(model, update, text, *labeled(model, text))
    assert played is not None
    faint = replace(played, positions=played.positions * torch.tensor([1.0, share]))
    said = doubt_displaced(model, faint, text)
    assert [note.split(" sends ")[0] for note in said] == ["A masked token of sequence 0"] * doubted


def test_rows_of_tokens_that_no_text_holds_are_a_doubt() -> None:
    """A token more has a trillionth of the gradient: nothing else of it shows."""
    model, update, text = two_masks()
    held = play(model, update, text, *labeled(model, text))
    assert held is not None
    assert doubt_unheld(held) == []
    found = embedding_of(model)
    assert found is not None
    spare = next(token for token in range(5, VOCABULARY) if token not in {MASK, *text.tokens[0]})
    name = name_of(model, found[1].weight)
    rows = update.gradients[name].clone()
    rows[spare, 0] = 1e-12 * rows.norm()
    more = play(
        model,
        unsum.Update(update.gradients | {name: rows}),
        text,
        *labeled(model, text),
    )
    assert more is not None
    assert more.replay.explains
    assert more.unheld == (spare,)
    # noise in every row is no token's
    noise = (
        1e-12 * rows.norm() * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    )
    noisy = play(
        model,
        unsum.Update(update.gradients | {name: update.gradients[name] + noise}),
        text,
        *labeled(model, text),
    )
    assert noisy is not None
    assert noisy.unheld == ()
    assert doubt_unheld(more) == [
        f"Token {spare} of the embedding has a gradient and stands in no sequence that was found."
    ]


def test_counts_that_are_no_whole_numbers_are_not_claimed() -> None:
    """Bred by the search for false claims: one text with two labels, at a scale that nobody knows,
    was claimed to be there four times."""
    model, tokens = made("llama classifier"), sentences(1, 3).repeat(2, 1)
    update = unsum.capture_text(model, tokens, torch.tensor([1, 0]), train=False)
    leaks = [
        unsum.separate(model, update.map(lambda _, g, f=f: f * g), "text")
        for f in (4.26, 1.0, 0.37)
    ]
    assert [leak.exact for leak in leaks] == [False, False, False]


@pytest.mark.parametrize("kind", ["gpt2 classifier", "llama classifier"])
@pytest.mark.parametrize("classes", [2, 3])
def test_causal_classifiers_give_texts_and_classes(kind: str, classes: int) -> None:
    model = made(kind, classes=classes)
    tokens, mask, truth = shortened(sentences(4, 9), [9, 6, 9, 4], 0)
    labels = torch.tensor([1, 0, 1, classes - 1])
    leak = unsum.attack(model, unsum.capture_text(model, tokens, labels, mask=mask, train=False))
    assert_read(leak, truth)
    found = dict(zip(map(tuple, leak.tokens or []), leak.labels.tolist(), strict=True))
    assert [found[tuple(text)] for text in truth] == labels.tolist()


@pytest.mark.parametrize("kind", ["bert classifier", "roberta classifier"])
def test_encoders_are_searched_as_a_whole(kind: str) -> None:
    model = made(kind)
    tokens, mask, truth = shortened(
        sentences(4, 10, framed=True), [10, 7, 10, 8], 1 if "roberta" in kind else 0
    )
    labels = torch.tensor([1, 0, 2, 1])
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, labels, mask=mask, train=False), "text"
    )
    assert_read(leak, truth)
    found = dict(zip(map(tuple, leak.tokens or []), leak.labels.tolist(), strict=True))
    assert [found[tuple(text)] for text in truth] == labels.tolist()


def test_a_briefly_trained_encoder() -> None:
    others, labels = sentences(12, 9, seed=7, framed=True), torch.arange(12) % 3
    model = trained(made("bert classifier"), others, labels, 20)
    tokens = sentences(3, 9, framed=True)
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, torch.tensor([0, 1, 1]), train=False), "text"
    )
    assert_read(leak, tokens.tolist())


@pytest.mark.parametrize("tied", [False, True])
def test_what_stands_behind_masks_comes_back(tied: bool) -> None:
    model, tokens = made("bert", tied=tied), sentences(3, 9, framed=True)
    labels, masked = torch.full_like(tokens, -100), tokens.clone()
    for row, place in [(0, 2), (0, 5), (1, 1), (2, 7)]:
        labels[row, place], masked[row, place] = tokens[row, place], MASK
    # a label that is an input elsewhere: tied embeddings hide it
    tokens[1, 3] = masked[1, 3] = tokens[0, 2]
    leak = unsum.separate(model, unsum.capture_text(model, masked, labels, train=False), "text")
    assert_read(leak, tokens.tolist())
    assert sorted(leak.labels.tolist()) == sorted(labels[labels >= 0].tolist())


def test_equal_texts_with_one_label_and_with_two_are_counted() -> None:
    model, tokens = made("gpt2 classifier"), sentences(4, 6)
    tokens[1], tokens[3] = tokens[0], tokens[2]
    labels = torch.tensor([1, 1, 0, 2])
    leak = unsum.separate(model, unsum.capture_text(model, tokens, labels, train=False), "text")
    assert_read(leak, tokens.tolist())
    assert sorted(leak.labels.tolist()) == [0, 1, 1, 2]


@pytest.mark.parametrize("kind", ["llama", "bert classifier"])
def test_as_many_positions_as_features_are_not_claimed(kind: str) -> None:
    model, tokens = made(kind), sentences(7, 10, framed=True)
    assert WIDTH < 7 * 9
    labels = torch.arange(7) % 3 if "classifier" in kind else None
    leak = unsum.separate(model, unsum.capture_text(model, tokens, labels, train=False), "text")
    assert not leak.exact
    assert leak.notes


@pytest.mark.parametrize("kind", ["llama", "bert classifier", "bert"])
def test_a_gradient_of_another_batch_is_not_claimed(kind: str) -> None:
    model, tokens = made(kind), sentences(2, 6, framed=True)
    labels = torch.tensor([0, 1]) if "classifier" in kind else tokens
    update = unsum.capture_text(model, tokens, labels, train=False)
    other = unsum.capture_text(model, sentences(2, 6, seed=9, framed=True), labels, train=False)
    deepest = [name for name in update.gradients if "layers.1" in name or "layer.1" in name][-1]
    swapped = update.map(lambda name, g: other.gradients[name] if name == deepest else g)
    assert not unsum.separate(model, swapped, "text").exact
    assert unsum.separate(model, update, "text").exact


def test_what_a_model_predicts_and_which_side_it_reads_is_recognized() -> None:
    assert [task_of(made(kind)) for kind in ("llama", "bert", "bert classifier")] == [
        TextTask.NEXT,
        TextTask.MASKED,
        TextTask.CLASS,
    ]
    assert [looks_ahead(made(kind)) for kind in ("llama", "gpt2 classifier", "bert")] == [
        False,
        False,
        True,
    ]
    found = embedding_of(made("roberta classifier"))
    assert found is not None
    assert (found[0], found[1].num_embeddings) == ("roberta.embeddings.word_embeddings", VOCABULARY)


def test_classes_and_masks_that_do_not_fit_are_refused_in_a_sentence() -> None:
    model, tokens = made("bert classifier"), sentences(2, 6)
    with pytest.raises(UnsumError, match=r"takes \(n, L\) tokens and \(n,\) classes"):
        unsum.capture_text(model, tokens)
    with pytest.raises(UnsumError, match="Labels must lie in 0…2; found 0…3"):
        unsum.capture_text(model, tokens, torch.tensor([0, 3]))
    with pytest.raises(UnsumError, match="mask must be as the tokens"):
        unsum.capture_text(model, tokens, torch.tensor([0, 1]), mask=torch.ones(2, 5))


@pytest.mark.parametrize(
    ("rank", "steps", "comes_back"), [(28, 0, True), (8, 0, False), (28, 5, True), (8, 5, False)]
)
def test_adapters_give_away_as_many_tokens_as_their_rank_holds(
    rank: int, steps: int, comes_back: bool
) -> None:
    model, tokens, labels = (
        adapted(made("gpt2 classifier"), rank),
        sentences(2, 9),
        torch.tensor([2, 1]),
    )
    trained(model, sentences(8, 9, seed=3), torch.arange(8) % 3, steps)
    update = unsum.capture_text(model, tokens, labels, train=False)
    assert len(update.gradients) == 2 * 2 + 1  # A and B in two layers, and the head
    leak = unsum.separate(model, update, "text")
    assert (sorted(leak.tokens or []) == sorted(tokens.tolist())) == comes_back
    # Before any training ∇A is zero: in two layers the search has used all that there is, and
    # nothing is left to confirm it.
    assert leak.exact == (comes_back and steps > 0), leak.notes


@pytest.mark.parametrize(("rounds", "length", "rank"), [(0, 9, 20), (1, 12, 20), (0, 9, 24)])
def test_adapters_beside_grouped_queries(rounds: int, length: int, rank: int) -> None:
    """Before training a layer's rank is the limit. After it A of queries and A of values read the
    same tokens: twice the rank.

    At rank 24 the values' ∇B is square, and only it knows of first tokens.
    """
    model, tokens, labels = (
        adapted(made("llama classifier", layers=3), rank),
        sentences(2, length),
        torch.tensor([2, 1]),
    )
    trained(model, sentences(8, 9, seed=3), torch.arange(8) % 3, rounds)
    assert (2 * length < rank) == (rounds == 0)
    leak = unsum.separate(model, unsum.capture_text(model, tokens, labels, train=False), "text")
    assert_read(leak, tokens.tolist())


@pytest.mark.parametrize("alpha", [8.0, 48.0])
def test_adapters_as_peft_names_and_scales_them(alpha: float) -> None:
    """Its names, its factor alpha / r, its frozen layers and the copy of the head that is trained;
    checked with peft 0.21."""
    model = PeftModel(made("llama classifier", layers=3), 24, alpha)
    tokens, labels = sentences(2, 9), torch.tensor([2, 1])
    update = unsum.capture_text(model, tokens, labels, train=False)
    layer = "base_model.model.model.layers.0.self_attn.v_proj"
    assert {f"{layer}.lora_A.default.weight", f"{layer}.lora_B.default.weight"} < set(
        update.gradients
    )
    assert "base_model.model.score.modules_to_save.default.weight" in update.gradients
    assert not any("base_layer" in name or "original_module" in name for name in update.gradients)
    leak = unsum.attack(model, update)
    assert leak.method == "text"
    assert_read(leak, tokens.tolist())
    assert abs(leak.scale - 1) < 1e-5


def test_padding_on_the_left_turns_nothing_where_positions_are_rotary() -> None:
    model, labels = made("llama classifier"), torch.tensor([1, 0, 1, 2])
    tokens, mask, truth = padded_on_the_left(sentences(4, 9), [9, 6, 9, 5])
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, labels, mask=mask, train=False), "text"
    )
    assert_read(leak, truth)
    found = dict(zip(map(tuple, leak.tokens or []), leak.labels.tolist(), strict=True))
    assert [found[tuple(text)] for text in truth] == labels.tolist()


def test_padding_that_is_trained_on_is_missed_and_not_claimed() -> None:
    """On the left, the last padding predicts the first token. The text comes back; those two
    positions do not."""
    model = made("llama")
    tokens, mask, truth = padded_on_the_left(sentences(4, 9), [9, 6, 9, 5])
    leak = unsum.separate(
        model,
        unsum.capture_text(model, tokens, tokens.where(mask, -100), mask=mask, train=False),
        "text",
    )
    assert sorted(leak.tokens or []) == sorted(truth)
    assert not leak.exact
    assert (
        leak.notes[0] == "The mean is one over 27 samples, 25 were found: the others left no trace."
    )


def paired(tokens: Tensor, ends: list[int]) -> Tensor:
    """Segments, where the first sentences of pairs end; each sentence is closed, as a tokenizer
    does."""
    for row, end in enumerate(ends):
        tokens[row, end - 1] = CLOSES
    return (torch.arange(tokens.shape[1]) >= torch.tensor(ends)[:, None]).long()


@pytest.mark.long
def test_pairs_of_sentences_come_back_with_their_segments() -> None:
    model, tokens = made("bert classifier").eval(), sentences(3, 10, framed=True)
    segments = paired(tokens, [4, 6, 7])
    update = unsum.capture_text(
        model, tokens, torch.tensor([0, 2, 1]), segments=segments, train=False
    )
    leak = unsum.separate(model, update, "text")
    assert_read(leak, tokens.tolist())
    assert leak.segments is not None
    assert leak.tokens is not None
    order = [leak.tokens.index(row) for row in tokens.tolist()]
    assert [leak.segments[i] for i in order] == segments.tolist()
    assert leak.labels[order].tolist() == [0, 2, 1]


def test_a_segment_is_part_of_the_claim() -> None:
    """The same tokens parted elsewhere are another text: what is found is what was sent, and not
    its neighbor."""
    model, tokens = made("bert classifier").eval(), sentences(1, 10, framed=True)
    found = []
    for end in (5, 6):
        segments = (torch.arange(10) >= end).long()[None]
        leak = unsum.separate(
            model, unsum.capture_text(model, tokens, torch.tensor([1]), segments=segments), "text"
        )
        assert_read(leak, tokens.tolist())
        found.append(leak.segments)
    assert found == [[[0] * 5 + [1] * 5], [[0] * 6 + [1] * 4]]


def test_pairs_of_masked_text_are_refused_in_a_sentence() -> None:
    model, tokens = made("bert").eval(), sentences(2, 10, framed=True)
    labels = torch.full_like(tokens, -100)
    labels[:, 3], tokens[:, 3] = tokens[:, 3], MASK
    segments = (torch.arange(10) > 5).long().expand(2, -1)
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, labels, segments=segments, train=False), "text"
    )
    assert not leak.exact
    assert "The texts are in segments, as pairs of sentences are" in leak.notes[0]


def test_segments_are_refused_where_nothing_reads_them() -> None:
    with pytest.raises(UnsumError, match="takes no segments"):
        unsum.capture_text(
            made("llama"), sentences(2, 6), segments=torch.zeros(2, 6, dtype=torch.long)
        )
    model, labels = made("bert classifier"), torch.tensor([0, 1])
    with pytest.raises(UnsumError, match=r"as the tokens, \(2, 6\), not \(2, 5\)"):
        unsum.capture_text(
            model, sentences(2, 6), labels, segments=torch.zeros(2, 5, dtype=torch.long)
        )


def test_a_plain_norm_adds_what_the_client_adds() -> None:
    """PyTorch's RMSNorm adds its precision's smallest step unless it is told otherwise: float64's
    is none to the client."""
    model, tokens = made("llama"), sentences(2, 6)
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "LlamaRMSNorm":
            model.set_submodule(name, nn.RMSNorm(WIDTH))
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.1)
    assert_read(
        unsum.separate(model, unsum.capture_text(model, tokens, train=False), "text"),
        tokens.tolist(),
    )


def test_a_causal_model_under_adapters_is_not_decided_in_a_sentence() -> None:
    """Its update holds no head: every attack refuses, and none may stumble over there being no
    answer before it."""
    model = PeftModel(made("llama"), 8, 16.0)
    update = unsum.capture_text(model, torch.randint(0, VOCABULARY, (2, 7)), train=False)
    assert not any("lm_head" in name for name in update.gradients)
    with pytest.raises(unsum.UnsumError, match=r"lacks is 'base_model\.model\.lm_head\.weight'"):
        unsum.attack(model, update)
    report = unsum.audit(model, update=update)
    assert report.verdict.state == "not decidable"
    assert "no gradient of the last linear layer" in report.verdict.headline
    assert [attempt.attack for attempt in report.tried] == ["text", "exact"]
