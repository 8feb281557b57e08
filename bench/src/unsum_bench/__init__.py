"""The papers' tables as declarations, and a runner that can be stopped anywhere and goes on, local or on a Ray cluster.

- `declare`: what an experiment is; `experiments`: the tables of each paper; `plan`: tables → cells, shares;
- `material`: photos, weights, device, and what makes two cells the same; `store`: the file of results;
- `measure`: one cell → its figures; `run`: all cells, here or on Ray, and what a person sees meanwhile;
- `table`: tables; `figures`: drawings; `pages`: both as pages of the documentation.
"""

from unsum.bench.declare import SIZES, Attack, Cell, Grid, Network, Size
from unsum.bench.experiments import EXPERIMENTS
from unsum.bench.material import Material
from unsum.bench.plan import cells_of, cells_of_all, chosen
from unsum.bench.run import run
from unsum.bench.store import Store

__all__ = [
    "EXPERIMENTS",
    "SIZES",
    "Attack",
    "Cell",
    "Grid",
    "Material",
    "Network",
    "Size",
    "Store",
    "cells_of",
    "cells_of_all",
    "chosen",
    "run",
]
