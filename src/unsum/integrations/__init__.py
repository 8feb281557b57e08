"""Audits where updates are: inside the user's own federated training. Each framework is imported by its own module alone.

rounds      weights sent out and weights sent back → what the server sees of one client
statistics  what BatchNorm's running statistics, sent along, give away
finding     one client's update, attacked: figures that a log can hold
time_limit  an audit that must not hold up training
journal     findings as JSON lines and in TensorBoard
guard       the client's side: look at an update before it leaves
flower      Flower's strategies and mods       (pip install 'unsum[flower]')
nvflare     NVFlare's filters                  (needs nvflare)
"""
