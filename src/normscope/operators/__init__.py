"""Rules for operations: the linear part, Lipschitz constants and output range of each."""
