"""Evidence → claim: the only place that grants `exact`."""
