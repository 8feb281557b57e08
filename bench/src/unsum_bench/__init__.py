"""The papers' tables as declarations, and a runner that can be stopped anywhere and goes on, local
or on a Ray cluster.

- `declare`: what an experiment is; `experiments`: the tables of each paper; `plan`: tables → cells,
  shares;
- `material`: photos, weights, device, and what makes two cells the same; `store`: the file of
  results;
- `measure`: one cell → its figures; `run`: all cells, here or on Ray, and what a person sees
  meanwhile;
- `table`: tables; `figures`: drawings; `pages`: both as pages of the documentation;
- `command`: `unsum bench`, which the command line of unsum finds by an entry point;
- `scripts`: what the tables leave out, searches for false claims and for attacks above their
  ceiling among it.

Nothing is imported here: a script needs PyTorch and unsum alone, where the runner needs the command
line's libraries.
"""
