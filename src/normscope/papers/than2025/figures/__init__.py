"""The figures of the paper, reproduced: training settings, recording, and evidence for each claim."""
