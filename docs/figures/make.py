"""Draw the figures of the concept pages: `uv run python docs/figures/make.py` (one core, under a
minute).

Every drawing is made of the numbers it explains, with fixed seeds. SVGs keep their text as text and
name three inks, which follow the reader's light or dark scheme; nothing is told by hue alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch
from matplotlib.path import Path as MplPath
from torch import Tensor, nn

import unsum
from unsum.ceiling.coin import Separation
from unsum.defend.added import AddedNoise
from unsum.head import collect_features

FOLDER = Path(__file__).parent
INK, FAINT, ACCENT = "#111111", "#888888", "#cc4400"  # replaced by names when a drawing is saved
SCHEMES = """<style>
svg{--ink:#1c1e21;--faint:#767a80;--accent:#b63d00}
@media(prefers-color-scheme:dark){svg{--ink:#e4e6ea;--faint:#9aa0a8;--accent:#ff9a5c}}
</style>"""


def main() -> None:
    mpl.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "unsum",
        "font.family": "DejaVu Sans",
        "font.size": 11,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.titlesize": 11,
        "legend.frameon": False,
    }
    for draw in (
        the_sum,
        the_ratio,
        the_simplex,
        the_certificate,
        batch_norm,
        defended,
        the_round,
        the_spans,
        two_worlds,
    ):
        save(draw(), draw.__name__.replace("_", "-"))


def save(figure: Figure, name: str) -> None:
    path = FOLDER / f"{name}.svg"
    figure.savefig(
        path, transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None}
    )
    plt.close(figure)
    text = path.read_text("utf-8")
    for color, named in ((INK, "ink"), (FAINT, "faint"), (ACCENT, "accent")):
        text = text.replace(color, f"var(--{named})")
    text = text.replace("'DejaVu Sans'", "'DejaVu Sans', sans-serif")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"(<svg [^>]+>)", lambda found: found[1] + SCHEMES, text, count=1)
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n", "utf-8")


def squares(
    axes: Axes, matrix: Tensor, title: str, *, largest: float | None = None, ink: str = INK
) -> None:
    """Entries as squares: area is size, filled is positive, hollow is negative, a dot is zero."""
    rows, columns = matrix.shape
    top = float(matrix.abs().max()) if largest is None else largest
    sides = (0.92 * (matrix.abs() / top).sqrt()).clamp_max(0.92)
    # one path each: a patch per entry would make the files five times as large
    for positive in (True, False):
        chosen = ((matrix > 0) == positive) & (sides >= 0.03)
        paths = [_square(j, i, float(sides[i, j])) for i, j in chosen.nonzero().tolist()]
        if paths:
            face = ink if positive else "none"
            axes.add_patch(
                PathPatch(
                    MplPath.make_compound_path(*paths), facecolor=face, edgecolor=ink, linewidth=0.9
                )
            )
    zeros = (sides < 0.03).nonzero()
    axes.plot(zeros[:, 1], zeros[:, 0], ".", color=FAINT, markersize=1.5)
    axes.set(
        xlim=(-0.6, columns - 0.4), ylim=(rows - 0.4, -0.6), aspect="equal", xticks=[], yticks=[]
    )
    axes.set_title(title)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.7)


def _square(x: float, y: float, side: float) -> MplPath:
    h = side / 2
    return MplPath(
        [(x - h, y - h), (x + h, y - h), (x + h, y + h), (x - h, y + h), (x - h, y - h)],
        closed=True,
    )


def toy(
    labels: list[int], *, classes: int = 6, width: int = 10, spread: float = 1.0, seed: int = 3
) -> dict[str, Tensor]:
    """A head's gradient by its formula, with everything that goes into it."""
    generator = torch.Generator().manual_seed(seed)
    F = torch.randn(len(labels), width, generator=generator).relu()
    W = spread * torch.randn(classes, width, generator=generator) / width**0.5
    Y = nn.functional.one_hot(torch.tensor(labels), classes).float()
    P = (F @ W.T).softmax(1)
    G = (P - Y) / len(labels)
    return {"F": F, "G": G, "P": P, "Y": Y, "W": W, "grad_W": G.T @ F, "grad_b": G.sum(0)}


def the_sum() -> Figure:
    """∇W = Gᵀ F: what the server sees is a product of what it may not see."""
    case = toy([0, 2, 2])
    figure, axes = plt.subplots(
        1, 3, figsize=(8.6, 2.7), width_ratios=[10, 3.4, 10], gridspec_kw={"wspace": 0.32}
    )
    squares(axes[0], case["grad_W"], "∇W: one row per class")
    squares(axes[1], case["G"].T, "Gᵀ: how wrong", ink=ACCENT)
    squares(axes[2], case["F"], "F: one row per person", ink=ACCENT)
    axes[0].set_xlabel("received by the server")
    axes[1].set_xlabel("private")
    axes[2].set_xlabel("private")
    for left, sign in ((axes[1], "="), (axes[2], "×")):
        box = left.get_position()
        figure.text(box.x0 - 0.028, 0.5, sign, ha="center", va="center", fontsize=18)
    return figure


def the_ratio() -> Figure:
    """The ratio ∇W_y/∇b_y of two features, for labels of one's own and for a shared one."""
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.5), sharex=True, sharey=True)
    F = torch.tensor([[1.0, 3.2], [3.4, 2.6], [2.6, 0.7]])
    for axes, labels, title in (
        (panels[0], [0, 1, 2], "three labels"),
        (panels[1], [0, 0, 2], "two share a label"),
    ):
        classes = 40
        W = 0.05 * torch.randn(classes, 2, generator=torch.Generator().manual_seed(0))
        G = ((F @ W.T).softmax(1) - nn.functional.one_hot(torch.tensor(labels), classes)) / 3
        present = sorted(set(labels))
        answers = (G.T @ F)[present] / G.sum(0)[present, None]
        axes.plot(*F.T, "o", color=INK, markersize=9, markerfacecolor="none", label="true features")
        axes.plot(
            *answers.T,
            "x",
            color=ACCENT,
            markersize=9,
            markeredgewidth=2.2,
            label="what the ratio gives",
        )
        if len(present) < 3:
            axes.plot(*F[:2].T, "--", color=FAINT, linewidth=1)
            axes.annotate(
                "the mean of both:\nnobody's features",
                answers[0] + torch.tensor([-1.1, -1.0]),
                color=INK,
            )
        axes.set(title=title, xlabel="first feature", xlim=(0, 4.4), ylim=(0, 4))
    panels[0].set_ylabel("second feature")
    panels[0].legend(loc="upper right")
    return figure


def the_simplex() -> Figure:
    """Rows of unlabeled classes are convex combinations of the batch's features."""
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.7), sharex=True, sharey=True)
    F = torch.tensor([[0.6, 0.8], [4.2, 1.2], [2.0, 3.8]])
    ring: dict[str, Any] = {
        "color": ACCENT,
        "markersize": 11,
        "markerfacecolor": "none",
        "markeredgewidth": 2,
    }
    for axes, spread, title in (
        (panels[0], 0.15, "fresh model"),
        (panels[1], 1.8, "trained model"),
    ):
        classes = 60
        W = spread * torch.randn(classes, 2, generator=torch.Generator().manual_seed(4))
        P = ((F - F.mean(0)) @ W.T).softmax(1)  # a bias that centers the logits
        rows = (P.T @ F) / P.sum(0)[:, None]
        axes.plot(*torch.cat([F, F[:1]]).T, "-", color=FAINT, linewidth=1)
        axes.plot(*rows.T, ".", color=INK, markersize=5, label="rows ∇W_c/∇b_c, classes nobody has")
        axes.plot(*F.T, "o", **ring, label="features of the three samples")
        axes.set(title=title, xlabel="first feature", xlim=(0, 5), ylim=(0, 6.2))
    panels[0].set_ylabel("second feature")
    panels[0].legend(loc="upper left", fontsize=9.5)
    return figure


def the_certificate() -> Figure:
    """Residual and predicted error against the true error, on heads from fresh to hardly telling
    samples apart."""
    residual, predicted, true, called = [], [], [], []
    for case in range(48):
        torch.manual_seed(case)
        net = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 30))
        with torch.no_grad():
            net[2].weight *= 10 ** (-3 + 4 * (case % 16) / 15)
        inputs, labels = torch.randn(5, 40), torch.tensor([1, 1, 1, 7, 12])
        leak = unsum.separate(net, unsum.capture(net, inputs, labels), labels=labels)
        error = unsum.score(leak, features=collect_features(net, inputs))["worst_feature_error"]
        residual.append(leak.residual)
        predicted.append(leak.predicted_error)
        true.append(error)
        called.append(leak.exact)
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.6), sharey=True)
    for axes, values, name in (
        (panels[0], residual, "residual"),
        (panels[1], predicted, "predicted error"),
    ):
        for sure, mark, label in ((True, "o", "called exact"), (False, "x", "not called exact")):
            x = [min(max(v, 1e-9), 10.0) for v, c in zip(values, called, strict=True) if c is sure]
            y = [e for e, c in zip(true, called, strict=True) if c is sure]
            color = INK if sure else ACCENT
            axes.plot(
                x,
                y,
                mark,
                color=color,
                markersize=6,
                markerfacecolor="none",
                markeredgewidth=1.4,
                label=label,
            )
        axes.set(xscale="log", yscale="log", xlabel=f"{name} (what the attacker sees)")
        axes.minorticks_off()
    panels[1].plot(
        [1e-7, 10], [1e-7, 10], "--", color=FAINT, linewidth=1, label="prediction = truth"
    )
    panels[0].set_ylabel("true error of the worst sample")
    panels[1].legend(loc="upper left", fontsize=9.5)
    return figure


def batch_norm() -> Figure:
    """Two batches that differ in brightness and contrast are one and the same after
    normalization."""
    x = torch.linspace(0, 1, 80)
    shape = torch.stack(
        [0.5 + 0.2 * torch.sin(9 * x), 0.45 + 0.3 * (x - 0.5), 0.4 + 0.15 * torch.cos(17 * x)]
    )
    dark = 0.45 * shape + 0.02
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 2.7), gridspec_kw={"wspace": 0.28})
    normal = [(batch - batch.mean()) / batch.std() for batch in (shape, dark)]
    assert torch.allclose(*normal, atol=1e-4)
    drawn = (
        (shape, "a batch of three signals", (0, 1)),
        (dark, "the same, darker and flatter", (0, 1)),
    )
    for axes, (batch, title, limits) in zip(
        panels, (*drawn, (normal[1], "both, after BatchNorm", (-2.6, 2.6))), strict=True
    ):
        for signal, dash in zip(batch, ("-", "--", ":"), strict=True):
            axes.plot(x, signal, dash, color=INK, linewidth=1.6)
        axes.axhline(float(batch.mean()), color=ACCENT, linewidth=0.9)
        axes.set(title=title, ylim=limits, xticks=[])
    panels[0].set_ylabel("value")
    return figure


def defended() -> Figure:
    """One head's gradient, and what is left of it after each defense."""
    case = toy([0, 2, 4], classes=6, width=9, seed=5)["grad_W"]
    torch.manual_seed(0)
    whole = unsum.Update({"weight": case})
    kinds = {
        "none": whole,
        "Clip(0.4)": unsum.Clip(0.4)(whole),
        "Noise(0.1)": unsum.Noise(0.1)(whole),
        "Prune(0.8)": unsum.Prune(0.8)(whole),
        "Quantize(2)": unsum.Quantize(2)(whole),
        "Sign()": unsum.Sign()(whole),
    }
    figure, panels = plt.subplots(
        2, 4, figsize=(8.6, 3.6), gridspec_kw={"hspace": 0.35, "wspace": 0.12}
    )
    largest = float(case.abs().max())
    for axes, (name, update) in zip(panels.flat, kinds.items(), strict=False):
        squares(
            axes, update.gradients["weight"], name, largest=1.0 if name == "Sign()" else largest
        )
    left = case.clone()
    left[:, [1, 4, 5, 7]] = 0
    squares(panels[1, 2], left, "Soteria: columns", largest=largest)
    squares(panels[1, 3], torch.zeros_like(case), "DropHead()", largest=largest)
    return figure


def the_round() -> Figure:
    """Who holds what: the client's side, the wire, the attacker's side, and the referee."""
    figure, axes = plt.subplots(figsize=(8.6, 3.3))
    axes.set(xlim=(0, 100), ylim=(0, 40), xticks=[], yticks=[])
    axes.axis("off")
    boxes = {
        "samples": (1, 24, "private samples\nand labels", ACCENT),
        "client": (22, 24, "client: capture\nand defenses", INK),
        "update": (43, 24, "Update", INK),
        "separate": (60, 24, "separate:\nfeatures, labels", INK),
        "pictures": (81, 24, "peel or invert:\ninputs, pictures", INK),
        "model": (43, 7, "model,\nas sent", INK),
        "knowledge": (60, 7, "Knowledge:\ndeclared", INK),
        "score": (81, 7, "score: compares\nwith the truth", ACCENT),
    }
    width, height = 17, 9
    for x, y, text, color in boxes.values():
        w = 13 if text in ("Update", "model,\nas sent") else width
        axes.add_patch(
            FancyBboxPatch(
                (x, y),
                w,
                height,
                boxstyle="round,pad=0.3",
                facecolor="none",
                edgecolor=color,
                linewidth=1.3,
            )
        )
        axes.text(x + w / 2, y + height / 2, text, ha="center", va="center", fontsize=9)
    arrows = [
        ((18.6, 28.5), (21.4, 28.5)), ((39.6, 28.5), (42.4, 28.5)), ((56.6, 28.5), (59.4, 28.5)),
        ((77.6, 28.5), (80.4, 28.5)), ((54, 16.5), (61, 23.4)), ((68.5, 16.5), (68.5, 23.4)),
        ((89.5, 23.4), (89.5, 16.6)), ((46, 16.5), (33, 23.4)),
    ]  # fmt: skip
    for start, end in arrows:
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=11, color=INK, linewidth=1.1
            )
        )
    axes.plot([9.5, 9.5, 89.5, 89.5], [23.4, 2, 2, 6.4], "--", color=ACCENT, linewidth=1.1)
    axes.text(28, 3, "the truth goes to the referee alone", fontsize=10, ha="center")
    axes.plot([58.2, 58.2], [4.5, 36.5], ":", color=FAINT, linewidth=1.2)
    axes.text(57.4, 37, "client and wire", ha="right", fontsize=10)
    axes.text(59, 37, "attacker: a curious server", ha="left", fontsize=10)
    return figure


def the_spans() -> Figure:
    """Which mixtures of two samples fit the next layer's span, and which maps have all of their
    patches in a convolution's."""
    figure, (plane, spectrum) = plt.subplots(1, 2, figsize=(8.6, 3.7), gridspec_kw={"wspace": 0.35})
    generator = torch.Generator().manual_seed(4)
    X = torch.randn(2, 12, generator=generator, dtype=torch.float64)
    W, b = (torch.randn(40, n, generator=generator, dtype=torch.float64) for n in (12, 1))
    span = torch.linalg.svd((X @ W.T + b.T).relu(), full_matrices=False).Vh
    shares = torch.linspace(-0.6, 1.6, 221, dtype=torch.float64)
    written = (torch.cartesian_prod(shares, shares) @ X @ W.T + b.T).relu()
    misfit = (written - written @ span.T @ span).norm(dim=1) / written.norm(dim=1)
    lines = plane.contour(
        shares,
        shares,
        misfit.view(221, 221).T,
        levels=[0.05, 0.1, 0.15, 0.2, 0.3, 0.4],
        colors=FAINT,
        linewidths=0.9,
    )
    plane.clabel(lines, [0.1, 0.2, 0.4], fontsize=8)
    plane.plot([1, 0], [0, 1], "o", color=ACCENT, markersize=8)
    plane.annotate("one sample", (1.06, -0.16))
    plane.annotate("the other", (0.06, 1.06))
    plane.set(
        title="how badly a mixture fits the next span",
        xlabel="share of one sample",
        ylabel="share of the other",
    )
    values = _patch_misfits(batch=3, channels=8, size=4, generator=generator)
    spectrum.semilogy(range(1, 4), values[:3].clamp_min(1e-16), "o", color=ACCENT)
    spectrum.semilogy(
        range(4, 31), values[3:30], "o", color=INK, markerfacecolor="none", markersize=5
    )
    spectrum.annotate("three samples:\nthree maps, and mixtures of them", (4, 1e-15))
    spectrum.set(
        title="how badly all patches of a map fit",
        xlabel="directions in the space of maps",
        ylim=(1e-17, 10),
    )
    return figure


def two_worlds() -> Figure:
    """The noisy updates of two worlds along the line between them, and what that leaves to know as
    the noise grows."""
    figure, (line, curve) = plt.subplots(1, 2, figsize=(8.6, 3.4), gridspec_kw={"wspace": 0.28})
    torch.manual_seed(0)
    model, x, labels = nn.Linear(10, 4), torch.randn(3, 10), torch.tensor([0, 1, 2])
    other = torch.tensor([3, 1, 2])
    one, two = (unsum.capture(model, x, y).gradients for y in (labels, other))
    apart = torch.cat([(two[name] - one[name]).flatten() for name in one])
    d, sigma = float(apart.norm()), 0.6 * float(apart.norm())
    noise = sigma * torch.randn(4000, len(apart)) @ (apart / d)
    edges = torch.linspace(-2.2, 3.2, 46).tolist()
    for shift, ink, name in ((0.0, INK, "the label is 0"), (1.0, ACCENT, "the label is 3")):
        style = "-" if shift == 0 else "--"
        line.hist(
            (noise / d + shift).tolist(),
            edges,
            histtype="step",
            color=ink,
            linewidth=1.4,
            linestyle=style,
        )
        line.annotate(
            name,
            (-0.9 if shift == 0 else 1.9, 330),
            color=ink,
            ha="right" if shift == 0 else "left",
        )
    line.plot([0.5, 0.5], [0, 400], ":", color=FAINT)
    line.set(
        title="4000 noisy updates of each world",
        xlabel="along the line between the worlds",
        yticks=[],
        xticks=[0, 1],
    )
    sigmas = torch.logspace(-1.2, 1.2, 60) * d
    worlds = Separation(d**2)
    noises = [AddedNoise("gaussian", float(s)) for s in sigmas]
    ratio = (sigmas / d).tolist()
    curve.semilogx(ratio, [worlds.guess(s) for s in noises], color=INK)
    curve.semilogx(ratio, [worlds.known(s) for s in noises], "--", color=ACCENT)
    named = float(((noise / d) < 0.5).float().mean())
    curve.plot([0.6], [named], "o", color=INK, markerfacecolor="none")
    curve.annotate("named at most this often", (0.75, 0.9), color=INK)
    curve.annotate("share explained at most", (0.07, 0.1), color=ACCENT)
    curve.set(
        title="what nobody can exceed",
        xlabel="noise over the distance of the worlds",
        ylim=(0, 1.05),
    )
    return figure


def _patch_misfits(batch: int, channels: int, size: int, generator: torch.Generator) -> Tensor:
    """Eigenvalues of Σ ‖what sticks out of the span of all patches‖² on maps, smallest first."""
    maps = torch.randn(batch, channels, size, size, generator=generator, dtype=torch.float64)
    patches = nn.functional.unfold(maps, 3, padding=1).transpose(1, 2).flatten(0, 1)
    span = torch.linalg.svd(patches, full_matrices=False).Vh
    every = torch.eye(channels * size**2, dtype=torch.float64).view(-1, channels, size, size)
    found = nn.functional.unfold(every, 3, padding=1).transpose(1, 2)
    outside = (found - found @ span.T @ span).flatten(1)
    return torch.linalg.eigvalsh(outside @ outside.T)


if __name__ == "__main__":
    main()
