"""Language models: every position of every sequence is a sample, and its label is the next token.

- `network`: what a language model's layers read; `span`: the space in which the client's inputs
  lie;
- `walk`: prefixes, one token longer at every step; `counts`: how often each occurs and what follows
  it, from the head;
- `blurred`: the search under noise and in bfloat16: `graded` weighs what a layer read, `beam` keeps
  likely prefixes, `chosen` tells by the gradient which sequences there are;
- `sentences`: the sequences, with last labels that tied embeddings hide; `method`: the separator
  itself;
- `replay`: the gradient of what was found, computed anew; `judge`: whether it tells every token,
  and what may be claimed.
"""

from unsum.separate.text.method import text

__all__ = ["text"]
