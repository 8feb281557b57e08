"""The one equation for every loss, what is known of it, and how it is solved.

- `noise`: how noisy the gradient is, how many samples stand out, and weight decay; `span`: the same
  without softmax's zero sums;
- `observation`: the factored gradient, which is all that is known; `equation`: α T̃ᵀ G(T K + b, Y)
  = Uᵀ with its derivatives;
- `conjugate`: how its damped normal equations are solved without their matrix; `levenberg`: how
  long that takes.
"""
