"""What answers queries best: solvers, nets and rivals on the same problems, measured alike."""
