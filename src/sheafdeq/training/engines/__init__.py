"""Engines that carry out a planned sweep: worker processes on this machine, or Ray.

An engine only decides where a run is computed. What a run is, when it counts as done and what
happens when a process dies is the run store's business, so all engines give the same records.
"""
