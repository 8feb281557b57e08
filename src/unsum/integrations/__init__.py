"""Audits where updates are: inside the user's own federated training. Each framework is imported by
its own module alone.

rounds      weights sent out and weights sent back → what the server sees of one client, BatchNorm's
            statistics included
finding     one client's update, attacked: figures that a log, JSON lines and TensorBoard can hold
time_limit  an audit that must not hold up training
guard       the client's side: look at an update before it leaves
flower      Flower's strategies and mods       (pip install 'unsum[flower]')
nvflare     NVFlare's filters                  (needs nvflare)
"""
