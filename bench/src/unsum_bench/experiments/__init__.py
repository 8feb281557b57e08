"""Every table. To add one, write an `Experiment` into a file here and name it in this one."""

from unsum_bench.declare import Experiment
from unsum_bench.experiments import field, rgla, rgla_figures, soft

EXPERIMENTS: dict[str, Experiment] = {
    table.name: table
    for table in (*rgla.TABLES, *rgla_figures.FIGURES, *soft.TABLES, field.EXPERIMENT)
}
