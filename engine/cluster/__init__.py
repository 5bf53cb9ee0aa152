"""Several engines behind one endpoint: who computes what, who hands over to whom, who comes and goes."""
