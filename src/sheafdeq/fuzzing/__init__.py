"""Hostile input for every door: ``make fuzz``, or ``python -m sheafdeq.fuzzing --cases 10000``.

Each case is a number: it says which door is tried and seeds the input, so any case can be tried
again alone. A case ends well if it gives a result or a named error
(:class:`~sheafdeq.errors.SheafDEQError`; a command: exit code 0, 1 or 2 in words). It fails if it
raises anything else, kills its process, takes too much time or memory, executes something, opens a
connection, or writes outside its own folder.

``targets`` makes the inputs, ``guard`` watches what they cause, ``worker`` tries them one by one in
a process with limits, ``campaign`` keeps a pool of such processes and counts.
"""

from sheafdeq.fuzzing.campaign import Report, run_campaign
from sheafdeq.fuzzing.targets import TARGETS

__all__ = ["TARGETS", "Report", "run_campaign"]
