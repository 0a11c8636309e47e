"""Results to look at: training curves as a picture and a one-file page beside the figures."""
