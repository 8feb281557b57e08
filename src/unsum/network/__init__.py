"""What a model is made of, checked by running it: the data flow that is read off its code is
believed only where a pass agrees.

- `layers`: whether a layer computes what its class promises;
- `passes`: an input that the model takes, and passes that leave no trace in it;
- `kept`: what was found out, kept while the model stays as it is;
- `output`: whether what a layer writes is what the model returns;
- `flow`: whether the data flow that tracing shows is what the model computes;
- `chain`: layers that follow each other from the logits downwards; `shapes`: what shapes they read;
- `activations`: their slopes and inverses; `products`: with weights too large to be copied;
- `conv_pair`: two consecutive convolutions, and all that stands above them;
- `unit`, `residual_blocks`: a convolution with its BatchNorm, and the blocks that are made of them.
"""
