"""RGLA's figure 3: right solutions and twins, as points.

    python benchmarks/twins.py --data photos.tar --draws 25 --out docs/images/rgla-twins.png

The cells of `rgla-figure-3` whose search starts near the labels, with fewer batches: D constant in the backward pass and
differentiated, with L_w alone and with all three losses. A point is one batch: the error of its worst sample's features against
L_w, and against the cross-entropy that the search ended with. Above the dashed line a solution is a twin.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from unsum.bench import Material, cells_of_all, chosen
from unsum.bench.measure.twins import _WRONG, TwinPoint, solutions

MARKS = (("#0072b2", "o"), ("#e69f00", "s"), ("#009e73", "^"), ("#cc79a7", "x"))  # told apart by the color-blind, too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["smoke", "paper"], default="paper")
    parser.add_argument("--data", help="photos: a folder, tar or npz; by default the embedded ones")
    parser.add_argument("--draws", type=int, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("twins.png"))
    options = parser.parse_args()
    found: dict[str, list[TwinPoint]] = {}
    for cell in cells_of_all(chosen(["rgla-figure-3"]), options.size):
        if dict(cell.attack.options)["start"] != "labels":
            continue
        name = cell.attack.title.removesuffix(", from labels")
        points = solutions(replace(cell, draws=options.draws), Material(options.data, device=options.device))
        found[name] = points
        twins = [one for one in points if one.twin]
        print(f"{name}: {len(twins)} of {len(points)} are twins", flush=True)
        for kind, some in (("twin", twins), ("right", [one for one in points if not one.twin])):
            if some:
                w, entropy = (statistics.median(getattr(one, part) for one in some) for part in ("w", "entropy"))
                print(f"  {kind}: L_w {w:.1e}, cross-entropy {entropy:.2f}", flush=True)
    draw(found, options.out)


def draw(found: dict[str, list[TwinPoint]], out: Path) -> None:
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    true = statistics.median(one.true_entropy for points in found.values() for one in points)
    for axis, part, title in zip(
        figure.subplots(1, 2), ("w", "entropy"), ("L_w at the end", "cross-entropy at the end"), strict=True
    ):
        for (name, points), (color, mark) in zip(found.items(), MARKS, strict=True):
            places = [getattr(one, part) for one in points], [one.error for one in points]
            axis.scatter(*places, s=16, color=color, marker=mark, label=name)
        axis.axhline(_WRONG, color="gray", linestyle="--", linewidth=0.8)
        if part == "entropy":
            axis.axvline(true, color="gray", linestyle=":", linewidth=0.8)
        axis.set(xlabel=title, ylabel="error of the worst sample's features", yscale="log")
        axis.set_xscale("log" if part == "w" else "linear")
        axis.grid(alpha=0.3)
    figure.axes[1].legend(fontsize=8)
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
