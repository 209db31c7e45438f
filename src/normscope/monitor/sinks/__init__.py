"""Where measurements go: a run folder, TensorBoard, or any object with ``log(dict, step=...)``."""
