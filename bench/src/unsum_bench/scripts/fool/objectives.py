"""What a client may minimize or send in the place of a plain mean of cross-entropies, without a
word about it.

Each kind has a strength: at zero the client is plain. So the search finds how much of it a claim
still passes over.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Of the loss of each sample.
LOSSES = (
    "margin", "prior", "other classes damped", "entropy", "partition", "large logits", "ascent",
    "one weight", "hard samples", "easy samples", "two labels",
)  # fmt: skip
# Of the gradient on its way.
CHANGES = (
    "centralized", "rate of biases", "decay of weights", "decay of biases", "absolute decay",
    "clipped values", "one row", "rate of a layer",
)  # fmt: skip
OBJECTIVES = (*["plain"] * (len(LOSSES) + len(CHANGES) + 1), *LOSSES, *CHANGES, "other weights")


def losses(kind: str, strength: float, logits: Tensor, Y: Tensor) -> Tensor:
    """(B,) of what is minimized, for logits and targets Y (B, C)."""
    s, z, log_p = strength, logits, logits.log_softmax(1)
    plain = -(Y * log_p).sum(1)
    own = (Y * log_p.exp()).sum(1)
    if kind == "margin":  # as CosFace and LDAM have it
        return F.cross_entropy(z - s * Y, Y, reduction="none")
    if kind == "prior":  # adjusted by how often classes occur
        return F.cross_entropy(z + s * torch.linspace(0, 1, z.shape[1]).to(z), Y, reduction="none")
    if kind == "other classes damped":  # restricted softmax, of classes that a client has
        mine = (Y.sum(0) > 0).to(z)
        return F.cross_entropy(z * (mine + (1 - mine) / (1 + s)), Y, reduction="none")
    if kind == "entropy":
        return plain + s * (log_p.exp() * log_p).sum(1)
    if kind == "partition":
        return plain + s * z.logsumexp(1).square()
    if kind == "large logits":
        return plain + s * z.square().sum(1)
    first = torch.zeros(len(z)).to(z).index_fill(0, torch.zeros(1, dtype=torch.long), 1.0)
    if kind == "ascent":  # one sample is to be forgotten
        return plain * (1 - first * (1 + s))
    if kind == "one weight":
        return plain * (1 + s * first)
    if kind == "hard samples":  # focal
        return plain * (1 - own).clamp_min(1e-6) ** s
    if kind == "easy samples":  # generalized cross-entropy
        return (1 - own**s) / s
    if kind == "two labels":  # whose targets add up to more than one
        return -((Y + s * first[:, None] * Y.roll(1, 1)) * log_p).sum(1)
    return plain


def changed(
    kind: str, strength: float, gradients: dict[str, Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """The gradients after what the client's optimizer does to them; the last layer's are those of
    `strength`."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    last = list(gradients)[-1].rpartition(".")[0]

    def sent(name: str, g: Tensor) -> Tensor:
        s, p, weight = strength, parameters[name], gradients[name].ndim > 1
        mine = name.rpartition(".")[0] == last
        if kind == "centralized" and weight:
            return g - min(s, 1.0) * g.flatten(1).mean(1).view(-1, *[1] * (g.ndim - 1))
        if kind == "rate of biases" and not weight:
            return (1 + s) * g
        if kind == ("decay of weights" if weight else "decay of biases"):
            return g + s * p
        if kind == "absolute decay":
            return g + s * p.sign()
        if kind == "clipped values":
            most = g.abs().max() * max(0.0, 1 - s)
            return g.clamp(-most, most)
        if kind == "one row" and mine and weight:
            return torch.cat([(1 + s) * g[:1], g[1:]])
        return (1 + s) * g if kind == "rate of a layer" and mine and len(gradients) > 2 else g

    return {name: sent(name, gradient) for name, gradient in gradients.items()}


def moved(model: nn.Module, strength: float, generator: torch.Generator) -> None:
    """Other weights than the server sent: a stale round, a step uphill as SAM takes it, weights
    that were rounded."""
    with torch.no_grad():
        for p in model.parameters():
            step = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
            p.add_(strength * p.norm() / max(p.numel(), 1) ** 0.5 * step)
