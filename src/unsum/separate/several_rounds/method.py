"""One client in several rounds, on the same data: more equations for the same features.

Every round r gives  α_r T̃ᵀ (softmax(T K_r + b_r) − Y) = U_rᵀ  with weights W_r of its own, and one T for all of them if the
features are the same: A spans the rows of all gradients together. Noise is averaged, and what one round leaves open another may
decide. Features move with the body of the network; where they moved by more than the noise, the rounds do not fit together, and
that shows in the misfit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.head import Head
from unsum.knowledge import Knowledge
from unsum.leak import Leak
from unsum.separate.exact.solver import exact
from unsum.separate.several_rounds.together import Together, merged, of_equal_weights
from unsum.update import Update


def separate_rounds(
    rounds: Sequence[tuple[nn.Module, Update]],
    *,
    labels: Tensor | None = None,
    batch_size: int | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
) -> Leak:
    """`separate` for a client that trained on the same batch in several rounds. Only for data that are known to repeat.

    With the same features F (B, H) in every round r, ∇W_r = α (P_r − Y)ᵀ F: n rounds are one head of n·C classes.

    Rounds whose weights are equal, or so nearly that the noise hides the difference, count as one.

    Args:
        rounds: for each round the model with the weights that were sent, and the update that came back.
        labels, batch_size, device, seed: as for `separate`.

    Returns:
        One `Leak` for all rounds, or the best of the single ones, with a note, where the rounds do not fit together.

    Examples:
        >>> import torch, unsum
        >>> _ = torch.manual_seed(0)
        >>> inputs, labels = torch.randn(3, 64), torch.tensor([4, 4, 1])
        >>> models = [torch.nn.Linear(64, 20) for _ in range(2)]
        >>> leak = unsum.separate_rounds([(model, unsum.capture(model, inputs, labels)) for model in models])
        >>> sorted(leak.labels.tolist()), leak.exact
        ([1, 4, 4], True)
    """
    if not rounds:
        raise UnsumError("No round was given; pass a list of (model, update), one for each round.")
    start = time.perf_counter()
    knowledge = Knowledge(labels=labels, batch_size=batch_size, repeated_rounds=len(rounds))
    heads = [Head.of(model, update, device) for model, update in rounds]
    odd = next((head for head in heads if head.W.shape != heads[0].W.shape), None)
    if odd is not None:
        shapes = f"{tuple(heads[0].W.shape)} and {tuple(odd.W.shape)}"
        raise UnsumError(f"The rounds are of different models: their heads have the shapes {shapes}.")
    leak = _separated([[head] for head in heads], knowledge, seed)
    return replace(leak, knowledge=knowledge, seconds=time.perf_counter() - start)


def _separated(groups: list[list[Head]], knowledge: Knowledge, seed: int) -> Leak:
    """All rounds together; those of one group have weights that say the same."""
    groups = of_equal_weights(groups)
    heads = [merged(group) for group in groups]
    single = [exact(head, knowledge, seed=seed) for head in heads]
    total = sum(map(len, groups))
    if len(heads) == 1:
        return _with_note(single[0], f"{total} rounds of equal weights count as one.") if total > 1 else single[0]
    place = min(range(len(single)), key=lambda place: single[place].predicted_error)
    best = single[place]
    together = Together.of(heads, single, knowledge, seed)
    if isinstance(together, str):
        where = f"The answer is of round {place + 1} of {len(heads)} alone."
        return _with_note(best, f"The rounds do not fit together: {together} {where}")
    alike = together.alike()
    if alike is not None:
        first, second = alike
        joined = [*groups[first], *groups[second]]
        rest = [group for place, group in enumerate(groups) if place not in alike]
        return _separated([joined, *rest], knowledge, seed)
    try:
        leak = together.leak()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return _with_note(best, f"{total} rounds together leave nothing that could be inverted.")
    if best.exact and not leak.exact and together.agrees_with(best):
        return _with_note(
            best, f"{total} rounds fit together, but their weights leave more open than one of them does."
        )
    return _with_note(
        leak, f"{total} rounds were solved together; one round alone predicted {best.predicted_error:.1e}."
    )


def _with_note(leak: Leak, note: str) -> Leak:
    return replace(leak, notes=[note, *leak.notes])
