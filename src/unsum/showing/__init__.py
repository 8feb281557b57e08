"""How results are shown, in every output alike: figures and names in words, notebook cards, the
default level."""
