"""What every method on the solving side computes, written once.

- `replay`: the gradient that an answer sends, compared tensor by tensor with the one received;
- `descend`: damped Gauss–Newton, batched, for every nonlinear problem; `budget`: how far it goes;
- `found`: what starts ended in, each point once, and how many starts confirm it;
- `hunt`: rounds of starts until each sample was found twice;
- `conjugate`: conjugate gradients, for symmetric operators and for least squares;
- `twins`: whether a sample would be seen, and two that look like one.
"""
