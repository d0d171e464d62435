"""Seals on disk, and the anchors that name them.

- `sealing`: makes seals of new records, beside commits, and gives anchors.
- `rows`: reads seals and writes them, within a transaction.
- `inspection`: whether seals, records and anchors agree: a part of `verify`.
- `recent`: what was recorded after a seal.
"""
