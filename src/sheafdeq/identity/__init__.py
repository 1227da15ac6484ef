"""Which code computed a result: a digest of the definitions that can change it, whatever files they
are in.

A result is named by the *roles* of the code behind it (model, solver, adjoint, data, training,
certificate, kernel). A role is given by Python objects: a class, a builder. What such an object
means is its definition and, through the names it uses, the definitions those names stand for, in
this package and in a user's own modules:

    digest(d) = SHA-256( normal form of d, {(name, digest of what the name means)} )
    (``definitions.py``)

Files and modules have no part in it. A module may be renamed, moved, split or merged, and import
statements rewritten, and the digest stays; so it does when comments, docstrings, type hints or the
texts of errors change (``normal_form.py``). Any other edit of a reached definition changes it, and
so does an import that makes a name mean something else.

What is not followed, and why:

* installed libraries and the standard library count by the dotted name that is used, not by their
  sources;
* ``STANDS_FOR_ITSELF`` (``definitions.py``): lookups by name, whose choice is a role of its own,
  and the configuration, whose values are in the run's id; classes of errors and warnings;
* attributes set from outside at run time (monkey patches), and code built from strings.
"""

from __future__ import annotations

from sheafdeq.identity.roles import SCHEME, CodeIdentity, code_identity, model_roles

__all__ = ["SCHEME", "CodeIdentity", "code_identity", "model_roles"]
