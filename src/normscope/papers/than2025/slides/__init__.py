"""K. Than, Why do deep neural networks perform really well? (slides, 2023): its claims, half by half."""

#: Its halves in their order.
CHAPTERS = ("learning", "normalization")
