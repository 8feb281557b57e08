"""Every table. To add one, write an `Experiment` into a file here and name it in this one."""

from unsum.bench.declare import Experiment
from unsum.bench.experiments import field, rgla_batches, rgla_defenses, rgla_method, soft
from unsum.bench.experiments.rgla_figures import FIGURES

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        rgla_defenses.TABLE_2,
        rgla_method.TABLE_3,
        rgla_batches.TABLE_4,
        *(rgla_method.TABLE_5, rgla_method.TABLE_6, rgla_method.TABLE_7),
        *(rgla_batches.TABLE_8, rgla_batches.TABLE_9, rgla_batches.TABLE_10, rgla_batches.TABLE_11),
        rgla_defenses.TABLE_12,
        *FIGURES,
        *(soft.SUCCESS, soft.NOISE, soft.FULLY_CONNECTED, soft.CONVOLUTIONAL),
        field.EXPERIMENT,
    )
}
