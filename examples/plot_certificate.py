"""
What is proved of this model on this graph?
===========================================

``certify`` answers with a verdict, a rate, a metric and a domain, or with two equilibria, or with
nothing; it never guesses.
"""

import matplotlib.pyplot as plt
import torch

from sheafdeq.certificates import certify
from sheafdeq.data import load_task
from sheafdeq.models import IGNN, SheafCascade

torch.manual_seed(0)
graph = load_task("community", level=7, nodes=60).test.graph
models = {"IGNN": IGNN(2, 3), "SheafCascade": SheafCascade(2, 3, levels=3)}
certificates = {name: certify(model, graph) for name, model in models.items()}
print(certificates["SheafCascade"].report())

# %%
# The rate bounds how fast distances shrink. Smaller is faster; one would be no guarantee at all.

figure, axis = plt.subplots(figsize=(5, 2))
rates = {
    name: certificate.rate
    for name, certificate in certificates.items()
    if certificate.rate is not None
}
axis.barh(list(rates), list(rates.values()))
axis.axvline(1.0, color="black", linestyle="--", linewidth=0.8)
axis.set_xlabel("certified rate of one step")
figure.tight_layout()
