"""How long does a step of this engine take, and may that law be used?

Rows of windows, the fit, the stated law, calibration; `trust` alone decides trust, and says why.
Must not import pods or forecast.
"""
