"""The frame in torch: P_j, H and D as linear operators."""
