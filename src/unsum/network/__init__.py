"""What a model is made of, checked by running it: the data flow that is read off its code is
believed only where a pass agrees.

- `layers`: whether a layer computes what its class promises;
- `passes`: an input that the model takes, and passes that leave no trace in it;
- `kept`: what was found out, kept while the model stays as it is;
- `output`: whether what a layer writes is what the model returns.
"""
