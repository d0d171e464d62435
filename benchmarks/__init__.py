"""What Forkpoint costs, beside a bare SQLite floor and beside peers, all in one run.

    ./run --group benchmarks python -m benchmarks --help

Machines are noisy, so nothing here is a time to be compared with another day's: contenders take turns, round by
round, and what counts is the ratio of their medians. `fork`, `turn`, `load`, `tail`, `chain`, `disk`, `writers`,
`render` and `conversation` are what is measured; `floor` is the bare SQLite, `ours` and `runners` drive Forkpoint,
`peers_*` the others, and `scripted_model` is the model that all of them ask.
"""
