"""Speed and memory of the fused step beside its peers (``sheafdeq bench``)."""
