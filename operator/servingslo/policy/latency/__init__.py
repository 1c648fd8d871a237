"""Where does the time of a request go, and which share of requests is answered?

Parts of the latency, what they were while the objectives were met, availability. Only reported.
Must not import replicas' sizing or any knob: nothing here decides a count.
"""
