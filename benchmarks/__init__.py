"""Speed and accuracy of Normscope beside other tools and methods: ``python -m benchmarks``."""
