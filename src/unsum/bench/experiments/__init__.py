"""Every table, one small file each. To add one, write a file with an `Experiment` and name it here."""

from unsum.bench.declare import Experiment
from unsum.bench.experiments import (
    field,
    rgla_table_02,
    rgla_table_03,
    rgla_table_04,
    rgla_table_05,
    rgla_table_06,
    rgla_table_07,
    rgla_table_08,
    rgla_table_09,
    rgla_table_10,
    rgla_table_11,
    rgla_table_12,
    soft_images,
    soft_noise,
    soft_success,
)
from unsum.bench.experiments.rgla_figures import FIGURES

_TABLES = (
    *(rgla_table_02, rgla_table_03, rgla_table_04, rgla_table_05, rgla_table_06, rgla_table_07),
    *(rgla_table_08, rgla_table_09, rgla_table_10, rgla_table_11, rgla_table_12),
)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(module.EXPERIMENT for module in _TABLES),
        *FIGURES,
        *(soft_success.EXPERIMENT, soft_noise.EXPERIMENT, soft_images.FULLY_CONNECTED, soft_images.CONVOLUTIONAL),
        field.EXPERIMENT,
    )
}
