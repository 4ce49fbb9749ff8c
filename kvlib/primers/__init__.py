"""Small mechanisms under the primers: a decoder to count with, a batch to watch, an operating system."""
