"""Every table. To add one, write an `Experiment` into a file here and name it in this one."""

from unsum.bench.declare import Experiment
from unsum.bench.experiments import field, rgla, soft

EXPERIMENTS: dict[str, Experiment] = {table.name: table for table in (*rgla.TABLES, *soft.TABLES, field.EXPERIMENT)}
