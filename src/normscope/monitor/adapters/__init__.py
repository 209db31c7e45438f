"""The monitor inside other training loops: Lightning and the Hugging Face trainer."""
