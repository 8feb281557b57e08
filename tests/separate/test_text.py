"""Text out of a language model's gradient: every token in its place, or no claim."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

import unsum
from separate.language_models import FEATURES, VOCABULARY, batch, gpt2
from unsum.commands.main import app
from unsum.equation.span import span_of
from unsum.errors import UnsumError
from unsum.leak import Leak
from unsum.models.language import logits_of
from unsum.running.deadline import time_limit
from unsum.separate.text.graded import GradedSpan


def assert_read(leak: Leak, truth: list[list[int]]) -> None:
    assert leak.exact, leak.notes
    assert leak.tokens is not None
    assert sorted(leak.tokens) == sorted(truth)
    assert leak.residual < 1e-5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("sequences", "length"), [(1, 2), (3, 9), (5, 10)])
def test_every_token_comes_back_up_to_nearly_as_many_positions_as_features(
    tied: bool, sequences: int, length: int
) -> None:
    model, tokens = gpt2(tied=tied), batch(sequences, length)
    assert sequences * (length - 1) < FEATURES
    leak = unsum.attack(model, unsum.capture_text(model, tokens))
    assert leak.method == "text"
    assert_read(leak, tokens.tolist())
    assert leak.batch_size == sequences * (length - 1)
    assert leak.scale == pytest.approx(1, abs=1e-4)


def test_positions_carry_the_hidden_states_and_logits_of_the_client() -> None:
    model, tokens = gpt2(tied=True), batch(2, 6)
    # tied: `exact` would not do
    leak = unsum.separate(model, unsum.capture_text(model, tokens), "text")
    with torch.no_grad():
        hidden = model.transformer(tokens)[0][:, :-1].flatten(0, 1)
        logits = logits_of(model(tokens))[:, :-1].flatten(0, 1)
    scores = unsum.score(leak, targets=tokens[:, 1:].flatten(), features=hidden)
    assert scores["worst_feature_error"] < 1e-5
    assert scores["label_correct"] == 1
    nearest = torch.cdist(hidden.double(), leak.features.double()).argmin(1)
    assert float((leak.logits[nearest] - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("tied", [False, True])
def test_more_positions_than_features_are_not_claimed(tied: bool) -> None:
    model, tokens = gpt2(tied=tied), batch(8, 9)
    assert FEATURES < 8 * 8
    leak = unsum.separate(model, unsum.capture_text(model, tokens), "text")
    assert not leak.exact
    assert leak.notes


@pytest.mark.parametrize("tied", [False, True])
def test_equal_sequences_and_shared_beginnings_are_counted(tied: bool) -> None:
    model, tokens = gpt2(tied=tied), batch(4, 7)
    tokens[1] = tokens[0]
    tokens[2, :4] = tokens[0, :4]
    assert_read(unsum.separate(model, unsum.capture_text(model, tokens), "text"), tokens.tolist())


@pytest.mark.parametrize("tied", [False, True])
def test_padding_is_found_to_be_none_and_ignored_prompts_come_back_all_the_same(tied: bool) -> None:
    model, tokens = gpt2(tied=tied), batch(4, 9)
    labels = tokens.clone()
    labels[0, 6:] = -100  # padding
    labels[1, 3:] = -100
    labels[2, :5] = -100  # a prompt
    labels[3, 4] = -100  # one position in the middle
    filled = tokens.where((labels >= 0) | (torch.arange(4) > 1)[:, None], 0)
    leak = unsum.separate(model, unsum.capture_text(model, filled, labels), "text")
    assert_read(
        leak,
        [tokens[0, :6].tolist(), tokens[1, :3].tolist(), tokens[2].tolist(), tokens[3].tolist()],
    )
    assert leak.batch_size == int((labels[:, 1:] >= 0).sum())


def test_padding_agrees_with_the_attention_mask_of_hugging_face() -> None:
    model, tokens = gpt2(tied=False), batch(2, 6)
    labels = tokens.clone()
    labels[0, 4:] = -100
    model.zero_grad()
    model(tokens, attention_mask=(labels >= 0).long(), labels=labels).loss.backward()
    update = unsum.capture_text(model, tokens, labels)
    for name, parameter in model.named_parameters():
        assert torch.allclose(update.gradients[name], parameter.grad, atol=1e-6), name


def test_a_clipped_gradient_tells_its_scale() -> None:
    model, tokens = gpt2(tied=True), batch(3, 6)
    plain = unsum.capture_text(model, tokens)
    norm = torch.stack([g.norm() for g in plain.gradients.values()]).norm()
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, defenses=unsum.Clip(0.01)), "text"
    )
    assert_read(leak, tokens.tolist())
    assert leak.scale == pytest.approx(0.01 / float(norm), rel=1e-4)


def test_predicted_errors_are_those_of_features_and_infinite_where_nothing_is_found() -> None:
    """A rough gradient makes the features of the right text no worse."""
    model, tokens = gpt2(tied=True), batch(3, 4)
    update = unsum.capture_text(model, tokens)
    for sent in (update, update.map(lambda _name, g: g.half())):
        leak = unsum.separate(model, sent, "text")
        assert leak.tokens is not None
        assert sorted(leak.tokens) == sorted(tokens.tolist())
        if leak.exact:
            assert 1e-7 < leak.predicted_error < 1e-4
        else:  # a rough gradient leaves room for a sequence that is missing
            assert math.isnan(leak.predicted_error)
    nothing = update.map(
        lambda _name, g: torch.randn(g.shape, generator=torch.Generator().manual_seed(0))
    )
    assert unsum.separate(model, nothing, "text").predicted_error == float("inf")


def test_a_tied_model_whose_whole_vocabulary_occurs_gets_a_sentence() -> None:
    config = GPT2Config(
        vocab_size=6, n_positions=8, n_embd=48, n_layer=1, n_head=3, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    leak = unsum.separate(
        model, unsum.capture_text(model, torch.tensor([[0, 1, 2, 3, 4, 5, 0]])), "text"
    )
    assert not leak.exact
    assert "Every token of the vocabulary occurs" in leak.notes[0]


def test_a_rough_gradient_is_claimed_only_with_the_batch_size() -> None:
    """What is left of a float16 gradient would hide a memorized sequence."""
    model, tokens = gpt2(tied=True), batch(3, 4)
    update = unsum.capture_text(model, tokens).map(lambda _name, g: g.half())
    leak = unsum.separate(model, update, "text")
    assert not leak.exact
    assert "may be missing without a trace" in leak.notes[0]
    assert unsum.separate(model, update, "text", batch_size=9).exact
    assert not unsum.separate(model, update, "text", batch_size=10).exact


def test_strong_noise_is_never_certified() -> None:
    model, tokens = gpt2(tied=False), batch(3, 6)
    torch.manual_seed(0)
    assert unsum.separate(model, unsum.capture_text(model, tokens), "text").exact
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, defenses=unsum.Noise(1e-2)), "text"
    )
    assert not leak.exact


def test_weak_noise_leaves_the_text_readable() -> None:
    model, tokens = gpt2(tied=False), batch(3, 6)
    torch.manual_seed(0)
    leak = unsum.separate(
        model, unsum.capture_text(model, tokens, defenses=unsum.Noise(1e-6)), "text"
    )
    assert unsum.score(leak, tokens=tokens)["sequences_correct"] == 1


def test_dropout_hides_the_order_but_not_the_tokens() -> None:
    model, tokens = gpt2(tied=False, dropout=0.1), batch(2, 6)
    torch.manual_seed(0)
    leak = unsum.attack(model, unsum.capture_text(model, tokens, train=True), loss="cross-entropy")
    assert leak.method == "exact"
    assert leak.tokens is None
    assert leak.exact
    assert sorted(leak.labels.tolist()) == sorted(tokens[:, 1:].flatten().tolist())


class Plain(nn.Module):
    """A causal model of one's own: no attention and no positions, its context fades with the
    distance."""

    def __init__(self, *, early: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.early = early  # whether the first layer reads context already
        self.embedding = nn.Embedding(VOCABULARY, FEATURES)
        self.first = nn.Linear(FEATURES, 2 * FEATURES)
        self.mix = nn.Linear(2 * FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        fading = (0.7 ** (places[:, None] - places).clamp_min(0)).tril()
        x = self.embedding(tokens)
        x = torch.tanh(self.first(fading @ torch.tanh(x) if self.early else x))
        logits: Tensor = self.head(torch.tanh(self.mix(fading @ x)))
        return logits


@pytest.mark.parametrize("early", [False, True])
def test_any_module_that_maps_tokens_to_logits_is_read(early: bool) -> None:
    model, tokens = Plain(early=early), batch(2, 6)
    assert_read(unsum.separate(model, unsum.capture_text(model, tokens), "text"), tokens.tolist())


def test_a_claim_is_withdrawn_when_the_gradient_is_of_another_batch() -> None:
    model, tokens = gpt2(tied=True), batch(2, 6)
    update = unsum.capture_text(model, tokens)
    other = unsum.capture_text(model, batch(2, 6, seed=9))
    swapped = update.map(
        lambda name, g: other.gradients[name] if name.endswith("ln_f.weight") else g
    )
    leak = unsum.separate(model, swapped, "text")
    assert leak.tokens is not None
    assert sorted(leak.tokens) == sorted(tokens.tolist())
    assert not leak.exact


def test_a_span_admits_its_own_and_nobody_else() -> None:
    generator = torch.Generator().manual_seed(0)
    X, delta = torch.randn(7, 30, generator=generator), torch.randn(7, 90, generator=generator)
    span = span_of(delta.T @ X)
    assert span.rank == 7
    assert not span.full
    assert float(span.outside(X).max()) < 1
    assert float(span.outside(torch.randn(200, 30, generator=generator)).min()) > 100
    wide = span_of((delta.T @ X).T.contiguous().T[:20])
    assert wide.rank == 7
    assert float(wide.outside(X).max()) < 1


def test_a_folder_of_hugging_face_is_attacked_from_the_command_line(tmp_path: Path) -> None:
    model, tokens = gpt2(tied=True), batch(2, 6)
    model.save_pretrained(tmp_path / "model")
    unsum.capture_text(model, tokens).save(tmp_path / "update.safetensors")
    command = [
        "attack",
        "--model",
        f"hf:{tmp_path / 'model'}",
        "--update",
        str(tmp_path / "update.safetensors"),
    ]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "leak"), "--json"])
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "leak" / "leak.json").read_text("utf-8"))
    assert sorted(written["tokens"]) == sorted(tokens.tolist())
    assert written["exact"]
    shown = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "again")])
    assert " ".join(map(str, tokens[0].tolist())) in shown.output


def test_what_is_no_text_is_refused_in_a_sentence() -> None:
    model, tokens = gpt2(tied=False), batch(2, 6)
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(UnsumError, match="needs a language model"):
        unsum.capture_text(classifier, tokens)
    with pytest.raises(UnsumError, match="Tokens must lie in"):
        unsum.capture_text(model, tokens + VOCABULARY)
    with pytest.raises(UnsumError, match="No position has a label"):
        unsum.capture_text(model, tokens, torch.full_like(tokens, -100))
    with pytest.raises(UnsumError, match="whole numbers alike"):
        unsum.capture_text(model, tokens, tokens[:, 1:])
    with pytest.raises(UnsumError, match="inside a client that trains on images"):
        unsum.capture_text(model, tokens, defenses=unsum.SmoothLabels(0.1))
    update = unsum.capture_text(model, tokens)
    with pytest.raises(UnsumError, match="finds the labels itself"):
        unsum.separate(model, update, "text", labels=tokens.flatten())
    picture = unsum.capture(classifier, torch.rand(1, 2, 2), torch.tensor([0]))
    with pytest.raises(UnsumError, match="needs a language model"):
        unsum.separate(classifier, picture, "text")
    with pytest.raises(UnsumError, match="holds no text"):
        unsum.score(unsum.separate(classifier, picture), tokens=tokens)


def test_a_tied_model_whose_whole_vocabulary_occurs_is_no_crash_and_no_claim() -> None:
    """Every row of the shared weights holds an embedding's gradient too, so none is left to weigh
    prefixes by."""
    config = GPT2Config(
        vocab_size=12, n_positions=24, n_embd=FEATURES, n_layer=2, n_head=3,
        tie_word_embeddings=True, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0,
        eos_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    model, tokens = GPT2LMHeadModel(config), torch.arange(24).view(2, 12) % 12
    leak = unsum.attack(model, unsum.capture_text(model, tokens))
    assert not leak.exact or sorted(leak.tokens or []) == tokens.tolist()
    few = torch.arange(6).view(2, 3)  # half of the vocabulary is left to weigh prefixes by
    again = unsum.attack(model, unsum.capture_text(model, few), batch_size=4)
    assert again.exact, again.notes
    assert sorted(again.tokens or []) == few.tolist()


NOISES = {"plain": (), "noise": unsum.Noise(1e-3), "bfloat16": unsum.BFloat16()}
LIMIT, SLACK = 0.5, 4.0  # seconds: what a pass and a replay take at most on a busy machine


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("sent", NOISES)
def test_a_time_limit_is_kept_and_no_more_comes_back_than_was_declared(
    tied: bool, sent: str
) -> None:
    model, tokens = gpt2(tied=tied), batch(4, 8)
    torch.manual_seed(0)
    update = unsum.capture_text(model, tokens, defenses=NOISES[sent])
    unsum.separate(model, update.map(lambda _, g: torch.zeros_like(g)), "text")  # loads modules
    start = time.monotonic()
    with time_limit(LIMIT):
        leak = unsum.separate(model, update, "text", batch_size=28)
    assert time.monotonic() - start < LIMIT + SLACK
    found = leak.tokens or []
    assert sum(len(sequence) - 1 for sequence in found) <= 28
    assert not leak.exact or sorted(found) == sorted(tokens.tolist())


@pytest.mark.parametrize("rounded", [False, True])
def test_a_blurred_span_finds_its_own_likelier_than_a_stranger(rounded: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    X, delta = (torch.randn(9, n, generator=generator) for n in (40, 120))
    gradient = delta.T @ X
    blurred = gradient + 0.1 * torch.randn(gradient.shape, generator=generator)
    span = GradedSpan(gradient.bfloat16() if rounded else blurred, rounded=rounded)
    assert span.rank == 9
    if not rounded:
        assert span.deviation == pytest.approx(0.1, rel=0.05)
    strangers = torch.randn(500, 40, generator=generator)
    assert float(span.likelihood(X).min()) > 3 * float(span.likelihood(strangers).max()) + 10
    known = GradedSpan(blurred, known=X[:5])
    assert known.rank == 4
    assert float(known.likelihood(X[5:]).min()) > 3 * float(known.likelihood(strangers).max()) + 10


@pytest.mark.long
@pytest.mark.parametrize("tied", [False, True])
def test_bfloat16_and_strong_noise_leave_most_tokens_readable(tied: bool) -> None:
    """What a trained model sends of well predicted tokens is faint; nine in ten come back all the
    same, and nothing is claimed."""
    model, text = gpt2(tied=tied), batch(64, 9, seed=5)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(100):
        some = text[torch.randperm(64, generator=torch.Generator().manual_seed(step))[:16]]
        optimizer.zero_grad()
        model(some, labels=some).loss.backward()
        optimizer.step()
    tokens = batch(3, 9, seed=6)
    for defense in (unsum.BFloat16(), unsum.Noise(1e-4)):
        torch.manual_seed(0)
        update = unsum.capture_text(model, tokens, defenses=defense, train=False)
        with time_limit(120):
            leak = unsum.separate(model, update, "text")
        assert unsum.score(leak, tokens=tokens)["tokens_correct"] >= 0.9
        assert len(leak.tokens or []) <= 4
        assert not leak.exact
        assert not leak.predicts
