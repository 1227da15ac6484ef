"""Certificates: what is proved, refuted or left open about one model on one graph
(``docs/certificates.md``)."""

from __future__ import annotations

from sheafdeq.certificates import rules  # importing them registers them
from sheafdeq.certificates.certificate import (
    Assumption,
    Certificate,
    Domain,
    Level,
    Metric,
    Subject,
    Verdict,
    Witness,
    use_labels,
)
from sheafdeq.certificates.judgement import certify
from sheafdeq.certificates.problem import EFFORTS, Effort, Problem
from sheafdeq.certificates.rule import rule, rule_for, use_rule

__all__ = [
    "EFFORTS",
    "Assumption",
    "Certificate",
    "Domain",
    "Effort",
    "Level",
    "Metric",
    "Problem",
    "Subject",
    "Verdict",
    "Witness",
    "certify",
    "rule",
    "rule_for",
    "rules",
    "use_labels",
    "use_rule",
]
