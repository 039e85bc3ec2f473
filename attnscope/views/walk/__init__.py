"""The model of a walk through attention, which the terminal and the page share: plain data and pure functions.

`scene` is what can be looked at, `place` where one is and what an action does to that, `keys` the table of actions,
and `cell` the numbers that belong to a cell. A view draws these; what computes or reads them is a `scene.Source`.
"""
