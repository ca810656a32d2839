"""The state of a run, so that it can be interrupted and resumed: what a state holds, how it is stored, shown, and
merged for other worlds.
"""
