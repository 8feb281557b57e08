"""From what the first MLP read back to the patches: every step is one linear solve, token by token.

With all tokens z of the batch known, ∇W₂ = D₂ᵀ act(W₁ z + b₁) gives D₂, the gradient at what every
token sends on. Then

1. **lengths**: z = γ w/s + β hides how long w − mean was. The block writes y = w + MLP(z), and
   norm′(y) lies in the span of the
   next block's ∇(q, k, v): one equation after another for the single unknown s.
2. **attention**: D at w follows from D₂ and s, and ∇W_out = Dᵀ o gives o, what the heads wrote for
   every token; u = w − out(o).
3. **places**: u = E x + e + position. Of all positions one leaves nothing outside of what E makes
   of ∇E's row space, and x is
   what fits.
4. **pictures**: o is a mean over the tokens of its own picture, weighted by exp(q·k). So Σ π
   exp(q·k) (v − o) = 0 over all
   tokens, with π = 1 for those of the same picture and 0 for the others: as many linear equations
   as channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unsum.errors import UnsumError
from unsum.running.late_scipy import linear_sum_assignment
from unsum.running.progress import Progress
from unsum.spans.tokens.joint import together
from unsum.spans.tokens.network import FirstNorms, PatchNetwork
from unsum.spans.tokens.search import find_tokens
from unsum.spans.tokens.solve import Solved, row_space
from unsum.update import Update

# of a token: what may be left outside of its place; the next best place leaves as much at least
_FITS = 0.05
_MOST = (
    # of the tokens must be told, have a place, and be surest in one picture: the whole gradient may
    # tell the rest
    0.8
)


def by_tokens(
    network: PatchNetwork,
    update: Update,
    B: int,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> Solved:
    """A batch of B pictures; refuses where a layer is missing, or where there are too many tokens
    for the width."""
    block, first, T = network.block, network.first, network.tokens
    if block is None or first is None or first.inner is not None:
        raise UnsumError(
            "'tokens' reads batches of plain pre-norm blocks alone, and one picture of others; "
            "'exact' reads the head."
        )
    needed = (
        block.first.weight,
        block.second.weight,
        block.out.weight,
        f"{network.name}.weight",
        *block.readers,
    )
    frozen = [name for name in needed if name not in update.gradients]
    if frozen or not block.readers:
        raise UnsumError(
            f"The update lacks {(frozen or ['a second block'])[0]!r}, without which a batch's "
            "tokens stay mixed; use 'exact'."
        )
    found = find_tokens(block, update, T * B, seed, progress, device)
    if len(found) < _MOST * T * B:
        raise UnsumError(
            f"{len(found)} of the batch's {T * B} tokens were told apart, too few to go on. This "
            "is no sign that nothing leaks; 'exact' reads every picture's class token."
        )
    Z = found.points
    if len(Z) == T * B:  # with some missing, others would take up what these sent
        progress.say("Solving for all tokens together")
        Z = together(block, update, Z)
    unwound = unwind(network, update, Z, B)
    return Solved(
        unwound.X, float(found.errors.max()), needed, "tokens", unwound.spread, unwound.missing
    )


@dataclass(frozen=True)
class Unwound:
    """Patches (B, N, n) of every picture, and how far each one's numbers are off, (B, N).

    `missing` patches were not found, and are the mean of their picture's others.
    """

    X: Tensor
    spread: Tensor
    missing: int


def unwind(network: PatchNetwork, update: Update, Z: Tensor, B: int) -> Unwound:
    """The patches of B pictures, from the tokens Z (at most T B, d) that the first MLP read."""
    block, first = network.block, network.first
    assert block is not None
    assert first is not None

    def sent(name: str) -> Tensor:
        return update.gradients[name].to(Z.device).double()

    hidden = block.first(Z)
    A = block.activation.function(hidden)
    D2 = torch.linalg.lstsq(A.T, sent(block.second.weight).T).solution
    z = (Z - _shift(block.second_norm, Z)) / block.second_norm.weight.detach().to(Z)
    W1, W2 = (one.W.to(Z) for one in (block.first, block.second))
    s = _lengths(network, torch.cat([sent(name) for name in block.readers]), z, block.second(A))
    at_z = (
        ((D2 @ W2) * block.activation.slope(hidden)) @ W1 * block.second_norm.weight.detach().to(Z)
    )
    D = D2 + (at_z - at_z.mean(1, keepdim=True) - z * (at_z * z).mean(1, keepdim=True)) / s
    o = torch.linalg.lstsq(D.T, sent(block.out.weight)).solution
    u = _centered(s * z - block.out(o))
    placed = _placed(network, first, sent(f"{network.name}.weight").flatten(1), u, B)
    return _grouped(network, placed, _normed(block.norm, u), o, B)


def _centered(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)


def _shift(norm: nn.LayerNorm, like: Tensor) -> Tensor:
    return torch.zeros_like(like[0]) if norm.bias is None else norm.bias.detach().to(like)


def _normed(norm: nn.LayerNorm, rows: Tensor) -> Tensor:
    scaled = _centered(rows) / (rows.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return scaled * norm.weight.detach().to(rows) + _shift(norm, rows)


def _lengths(network: PatchNetwork, gradient: Tensor, z: Tensor, written: Tensor) -> Tensor:
    """(tokens, 1) the length that the second norm divided by; another unknown is the length at the
    next norm, if that has a β."""
    assert network.block is not None
    norm = network.block.next_norm
    V = row_space(gradient, len(z))
    gamma, beta = norm.weight.detach().to(z), _shift(norm, z)

    def outside(rows: Tensor) -> Tensor:
        return rows - (rows @ V.T) @ V

    ours, theirs, shift = (
        outside(gamma * _centered(z)),
        outside(gamma * _centered(written)),
        outside(beta[None]),
    )
    if float(shift.norm()) > 1e-9 * float(gamma.norm()):
        shift = shift / shift.norm()
        ours, theirs = (part - (part @ shift.T) * shift for part in (ours, theirs))
    return -(ours * theirs).sum(1, keepdim=True) / ours.square().sum(1, keepdim=True).clamp_min(
        1e-300
    )


@dataclass(frozen=True)
class _Placed:
    """(tokens, n) patches; (tokens,) their places: 0…N−1, or −1 − i for token i of those beside the
    patches; (tokens,) deviations of a patch's numbers; (tokens,) which fit."""

    X: Tensor
    places: Tensor
    spread: Tensor
    fits: Tensor


def _placed(
    network: PatchNetwork, first: FirstNorms, gradient: Tensor, u: Tensor, B: int
) -> _Placed:
    """A token errs in all directions alike, and what its place leaves outside is the part of it
    that shows."""
    basis = row_space(gradient, network.count * B)
    E, e = network.weight.to(u), 0.0 if network.bias is None else network.bias.detach().to(u)
    M = _centered(basis @ E.T)  # (N B, d)
    Q = torch.linalg.qr(M.T)[0]
    fixed = _centered(first.offset.to(u) + e)  # (N, d)

    def outside(rows: Tensor) -> Tensor:
        return rows - (rows @ Q) @ Q.T

    size = u.norm(dim=1, keepdim=True)
    left = (
        torch.cdist(outside(u), outside(fixed), compute_mode="donot_use_mm_for_euclid_dist") / size
    )
    beside = _centered(network.beside.to(u))
    left = torch.cat(
        [left, torch.cdist(u, beside, compute_mode="donot_use_mm_for_euclid_dist") / size], 1
    )
    capacity = left.repeat(1, B)  # every place has a token of every picture
    rows, columns = linear_sum_assignment(capacity.cpu().numpy())
    chosen = (
        torch.as_tensor(columns, device=u.device)[torch.as_tensor(rows).argsort()] % left.shape[1]
    )
    beyond = left.gather(1, chosen[:, None])[:, 0]
    if float((beyond < _FITS).double().mean()) < _MOST:
        raise UnsumError(
            "The tokens that were found do not fit the positions, so no picture is drawn; 'exact' "
            "reads the head."
        )
    places = torch.where(chosen < network.count, chosen, network.count - 1 - chosen)
    t = torch.linalg.lstsq(M.T, (u - fixed[places.clamp_min(0)]).T).solution.T
    gain = (E.square().sum() / min(E.shape)).sqrt()  # what E multiplies a deviation by
    spread = beyond * size[:, 0] / max(u.shape[1] - len(M), 1) ** 0.5 / gain
    return _Placed(t @ basis, places, spread, beyond < _FITS)


def _grouped(network: PatchNetwork, placed: _Placed, z: Tensor, o: Tensor, B: int) -> Unwound:
    """Whose patches they are, by what a token of every picture attended to."""
    block, places = network.block, placed.places
    assert block is not None
    seeds = _seeds(network, placed, B)
    patches = ((places >= 0) & placed.fits).nonzero()[:, 0]
    shared = block.split(
        _normed(block.norm, network.beside.to(z))
    )  # what stands beside patches is the same in every picture
    q, k, v = block.split(z)
    scale = q.shape[-1] ** -0.5
    memberships = []
    for seed in seeds:
        others = patches[patches != seed]

        def terms(
            keys: Tensor, values: Tensor, seed: Tensor = seed, top: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            logits = (q[seed] * keys).sum(-1) * scale  # (tokens, heads)
            top = logits.amax(0) if top is None else top
            weights = (
                (logits - top).exp().repeat_interleave(values[0].numel() // logits.shape[1], 1)
            )
            return weights * (values.flatten(1) - o[seed]), top

        found, top = terms(k[others], v[others])
        known = terms(shared[1], shared[2], top=top)[0].sum(0)
        if bool(places[seed] >= 0):
            known = known + terms(k[seed][None], v[seed][None], top=top)[0][0]
        pi = z.new_zeros(len(z))
        pi[others] = torch.linalg.lstsq(found.T, -known[:, None]).solution[:, 0]
        pi[seed] = 1.0
        memberships.append(pi)
    return _drawn(network, placed, torch.stack(memberships), patches)


def _seeds(network: PatchNetwork, placed: _Placed, B: int) -> Tensor:
    """(B,) a token of each picture: at the first place beside the patches, or else at the best
    known one that is complete."""
    places, best = placed.places, None
    for place in [*([-1] if network.tokens > network.count else []), *range(network.count)]:
        here = ((places == place) & placed.fits).nonzero()[:, 0]
        if len(here) == B and (
            best is None or float(placed.spread[here].max()) < float(placed.spread[best].max())
        ):
            best = here
            if place < 0:
                break
    if best is None:
        raise UnsumError(
            "At no place the tokens of all pictures were told apart, so nothing tells which "
            "patches belong together; 'exact' reads the head."
        )
    return best


def _drawn(network: PatchNetwork, placed: _Placed, pi: Tensor, patches: Tensor) -> Unwound:
    """The pictures, by memberships pi (B, tokens)."""
    B, X = len(pi), placed.X
    pictures = X.new_full((B, network.count, X.shape[1]), torch.nan)
    spread = X.new_zeros(B, network.count)
    told = 0
    for place in range(network.count):
        here = patches[placed.places[patches] == place]
        owners, columns = (
            torch.as_tensor(part) for part in linear_sum_assignment(-pi[:, here].cpu().numpy())
        )
        told += int((pi[:, here].argmax(0)[columns] == owners.to(pi.device)).sum())
        mine = here[columns.to(here.device)]
        pictures[owners, place], spread[owners, place] = X[mine], placed.spread[mine]
    if told < _MOST * len(patches):
        raise UnsumError(
            "Attention does not tell which patches belong together, so no picture is drawn; "
            "'exact' reads the head."
        )
    missing = pictures[..., 0].isnan()
    means = pictures.nanmean(1, keepdim=True)
    deviation = (pictures - means).square().nanmean().sqrt()
    return Unwound(
        torch.where(missing[..., None], means, pictures),
        torch.where(missing, deviation, spread),
        int(missing.sum()),
    )
