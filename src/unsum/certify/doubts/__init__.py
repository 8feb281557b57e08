"""Reasons for doubt, one file each: what else would explain this gradient at its precision?

- `misfit`: the answer itself does not, or only just;
- `number`: there were more samples than were found, or than were said;
- `merged`: samples that look like one;
- `faint`: samples that left no trace;
- `labels`: targets that were softer, or exchanged;
- `nuisance`: another scale, weight of a sample, temperature or size of the targets;
- `mirror`: a sample and its negative, under binary cross-entropy;
- `replay`: where inputs or text were recovered, what their gradient leaves unexplained.
"""
