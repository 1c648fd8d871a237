"""All input and output of the operator."""
