"""Labels: how much of them two samples may have exchanged without a trace.

Soft labels are read off α T̃ᵀ (P − Y) = Uᵀ once T is known. Where features depend on each other, as
those of a sample and of its double in another length, many labels send the same.

Labels that were taken for hard: a sample whose label is mixed with another's sends nearly what it
sends with a hard label and features that are mixed alike. For samples that resemble each other, or
a head that hardly bends between them, the difference drowns in the noise. To first order label i
moves to label k by ε, and T follows as well as it can: what the Jacobian cannot follow is all that
shows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unsum.certify.candidate import Candidate
from unsum.certify.further import FurtherUnknown
from unsum.certify.information import SampleInformation
from unsum.certify.question import Question, name_some
from unsum.certify.scatter import followed
from unsum.equation.equation import Linearized
from unsum.equation.observation import Observation
from unsum.losses import Softmax

TRUSTED_MIXING = 1e-3  # standard deviations of an entry that was read off that are sure enough
WRONG_LABEL = 1e-2  # of an entry, from which a label is wrong
# deviations that a mixture may lie beyond what the gradient says it is: 3e-5 of a Gaussian
SURE = 4.0
_NEIGHBORS = 4  # samples of other labels, the closest ones, that a sample is tried with


def doubt_mixing(question: Question) -> list[str]:
    """The doubt that two samples' labels are a mixture of both, where they were assumed to be
    hard."""
    candidate = question.candidate
    if question.knowledge.labels is not None or not isinstance(question.observation.loss, Softmax):
        return []
    if candidate.equation.Y is None or candidate.read_off:
        return []
    hidden = hidden_mixing(question)
    if hidden is None or hidden[0] < WRONG_LABEL:
        return []
    most, i, k = hidden
    return [
        (
            f"Labels {i} and {k} may be mixed with each other by {100 * min(most, 1.0):.2g} %: it "
            "would hardly show."
        )
    ]


def doubt_read_off(question: Question) -> list[str]:
    """The doubt about soft labels that other ones of the same samples would have sent the same
    for."""
    observation, candidate = question.observation, question.candidate
    if question.knowledge.labels is not None or (
        candidate.equation.Y is not None and not candidate.read_off
    ):
        return []
    deviations = _read_off_deviations(observation, candidate)
    unsure = (deviations >= TRUSTED_MIXING).nonzero()[:, 0].tolist()
    if not unsure:
        return []
    largest = min(float(deviations.max()), 1.0)
    return [
        (
            f"The labels of sample {name_some(unsure)} may be off by {largest:.2g}: others would "
            "have sent the same."
        )
    ]


def _read_off_deviations(observation: Observation, candidate: Candidate) -> Tensor:
    """(B,) what noise, and the error of T itself, make of the entries of Y; none of them is larger
    than 1."""
    at, certificate = candidate.at, candidate.certificate
    T, misfit = candidate.equation.extended(at.T), max(certificate.misfit, 1.0)
    weight = observation.weights_at(at, candidate.Y).min()
    information = (at.alpha * weight / misfit).square() * T @ T.T + torch.eye(
        len(T), dtype=T.dtype, device=T.device
    )
    by_noise = torch.linalg.inv(information).diagonal().clamp_min(0)
    errors = (candidate.equation.probabilities(at.T) - candidate.Y).norm(dim=1)
    moved = (errors * certificate.errors * at.T.norm(dim=1)).norm()
    by_T = moved * torch.linalg.pinv(T).norm(dim=0)
    by_alpha = (
        errors * certificate.log_alpha_deviation
        if candidate.equation.alpha_free
        else torch.zeros_like(errors)
    )
    return (by_noise + by_T.square() + by_alpha.square()).sqrt().nan_to_num(nan=torch.inf)


def hidden_mixing(question: Question) -> tuple[float, int, int] | None:
    """The largest exchange between two labels that the gradient leaves open, and their samples;
    None where all labels are one.

    The gradient itself says how large it is: what is left of it, along the change that T does not
    follow. Deviations come on top.
    """
    here, misfit, dense = question.here, question.misfit, question.is_dense
    labels = question.candidate.Y.argmax(1)
    pairs = _closest_pairs(here.at.T, labels, _NEIGHBORS if dense else 1)
    pairs = pairs if dense else pairs[:1]
    if not pairs:
        return None
    if dense:
        bound = mixed_at_most(question.information, here, labels, here.T.new_tensor(misfit))
    else:  # samples of the closest pair are each other's nearest
        shown = question.information.beside[FurtherUnknown.EXCHANGED, list(pairs[0])]
        bound = _open(shown.min(), here.cost, here.T.new_tensor(misfit))
    if float(bound) < WRONG_LABEL:
        return float(bound), *pairs[0]
    D = _mixed(
        here,
        torch.tensor([turn for pair in pairs for turn in (pair, pair[::-1])], device=here.G.device),
    )
    solved = followed(here, here.pull(D), misfit)
    if solved is None:
        return float("inf"), *pairs[0]
    flat = D.flatten(1)
    # A mixture is not larger than 1, as T is not larger than it came out.
    information = (
        flat @ flat.T
        - solved[0] @ solved[1].T
        + misfit**2 * torch.eye(len(D), dtype=flat.dtype, device=flat.device)
    )
    blocks = torch.stack(
        [information[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] for n in range(len(pairs))]
    )
    deviations = misfit * torch.linalg.eigvalsh(blocks)[:, 0].clamp_min(1e-30).rsqrt()
    along = (flat @ here.residual.flatten() - solved[1] @ here.gradient).view(-1, 2)
    said = torch.linalg.lstsq(blocks, along[..., None]).solution[..., 0].abs().amax(1)
    most = (said + SURE * deviations).nan_to_num(nan=torch.inf)
    worst = int(most.argmax())
    return float(most[worst]), *pairs[worst]


def mixed_at_most(
    bounds: SampleInformation, here: Linearized, labels: Tensor, misfit: Tensor
) -> Tensor:
    """(…) a bound of the largest exchange among all pairs of different labels (…, B).

    Each of the two shows in its own sample's part of the residual: half of both squares is no more
    than the residual's. What the gradient says of an exchange is no more than the whole residual
    along it.
    """
    shown = bounds.beside[..., FurtherUnknown.EXCHANGED :, :]
    most = _open(
        torch.minimum(shown, shown.mT), here.cost[..., None, None], misfit[..., None, None]
    )
    return most.where(labels[..., None, :] != labels[..., None], 0.0).amax((-2, -1))


def _open(shown: Tensor, cost: Tensor, misfit: Tensor) -> Tensor:
    """How much of two labels may be exchanged, each of which shows at least so much, squared."""
    return (cost.sqrt() + SURE * misfit) * (0.5 * shown + misfit.square()).rsqrt()


def _closest_pairs(T: Tensor, labels: Tensor, neighbors: int) -> list[tuple[int, int]]:
    """Pairs of different labels, each sample with its closest ones, the closest pair first."""
    distances = torch.cdist(T, T).masked_fill(labels[:, None] == labels, torch.inf)
    near, others = distances.topk(min(neighbors, len(T)), largest=False)
    found = {
        (min(i, k), max(i, k)): distance
        for i, (row, columns) in enumerate(zip(near.tolist(), others.tolist(), strict=True))
        for distance, k in zip(row, columns, strict=True)
        if distance < torch.inf
    }
    return sorted(found, key=found.__getitem__)


def _mixed(here: Linearized, turns: Tensor) -> Tensor:
    """(m, C, R [+ 1]) what the residual changes by, per unit, when label i turns into label k;
    turns (m, 2) are i, k."""
    i, k = turns.T
    Y = here.equation.targets(here.at)
    turned = (Y[i] - Y[k]) * here.equation.weight * here.at.alpha
    return turned[:, :, None] * here.T[i][:, None]
