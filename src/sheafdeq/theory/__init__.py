"""The mathematics of ``docs/theory.md`` as executable objects: coefficients, the counterexample, the separation."""
